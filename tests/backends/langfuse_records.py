"""Records of Langfuse's API with every field that a server always sends."""

PROJECT = {
    "data": [
        {
            "id": "p1",
            "name": "loom",
            "organization": {"id": "o1", "name": "weavers"},
            "metadata": {},
            "retentionDays": 30,
        }
    ]
}


def observation(id_, trace_id="0" * 32):
    """An observation with the fields of the group `core`."""
    return {
        "id": id_,
        "traceId": trace_id,
        "startTime": "2026-01-01T00:00:00.000Z",
        "endTime": None,
        "projectId": "p1",
        "parentObservationId": None,
        "type": "SPAN",
    }
