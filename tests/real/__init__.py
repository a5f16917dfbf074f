"""Real backend servers, installed from the registries, on loopback; read back through their own APIs."""
