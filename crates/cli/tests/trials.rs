//! Trials that are refused before anything is opened.

mod support;

use support::Folder;

#[test]
fn a_trial_that_is_refused_early_differs_in_what_was_set_alone() {
    let folder = Folder::new();
    let parent = folder.draw(&["--width", "64", "--height", "64"])["run_id"].clone();
    let parent = parent.as_str().unwrap();
    for set in ["width=17", "steps=0"] {
        folder.recorded(&["runs", "try", parent, "--set", set]).output().unwrap();
        let shown = folder.show("last");
        assert_eq!(shown["run"]["status"], "refused");
        let differences = shown["trial"]["differences"].as_array().unwrap();
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert_eq!(differences[0]["axis"], "input_size");
        assert_eq!(shown["trial"]["is_mixed"], false);
    }
}
