"""The tests that are skipped on Windows, by name, with the reason; docs/platforms.md lists them."""

MODES = "Windows has no modes and owners"
SHELL = "it runs a shell script, a POSIX signal or fork"
PATHS = "it compares POSIX paths"
WINE = "Wine: symbolic links behave unlike Windows"
PYDANTIC = "Wine: pydantic_core does not load, so the langfuse package cannot be used"

SKIPPED = {
    "test_log_is_private_and_grows_by_lines": MODES,
    "test_ten_processes_share_a_log_that_rotates": SHELL,
    "test_only_a_regular_file_is_written": WINE,
    "test_a_linked_settings_file_stays_a_link": WINE,
    "test_a_link_to_nothing_and_a_link_to_itself": WINE,
    "test_purge_deletes_a_link_and_not_its_target": WINE,
    "test_a_read_only_home_is_an_error_with_a_hint": MODES,
    "test_unreadable_settings_are_an_error": MODES,
    "test_our_own_files_are_private": MODES,
    "test_the_config_file_is_private_and_read_by_the_rest": MODES,
    "test_this_turnspan_can_be_registered": SHELL,
    "test_the_version_of_the_client_on_the_path": SHELL,
    "test_a_path_that_is_not_utf_8_is_an_error": PATHS,
    "test_the_paths_of_policies": PATHS,
    "test_a_dry_run_writes_nothing_and_sends_nothing": SHELL,
    "test_keys_come_from_one_place": PYDANTIC,
    "test_a_script_prints_which_server_gets_the_keys": PYDANTIC,
    "test_a_destination_is_tested_before_it_is_stored": PYDANTIC,
    "test_the_recorded_runtime_is_replaced": PATHS,
    "test_any_kind_of_file_gives_a_problem_and_never_blocks": "a directory cannot be opened there",
}
