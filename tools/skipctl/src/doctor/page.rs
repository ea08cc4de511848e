//! `docs/doctor.md` is made of the checks, so that every finding and its remedy is on it, as it is.

use super::CHECKS;
use super::finding::State;
use std::fmt::Write;

const HEAD: &str = "\
<!-- Written by the test that compares it with the checks: SKIPD_WRITE_DOCS=1 tools/test pages. -->
# skipctl doctor

Looks at what serving needs of a machine, and says what mends what is wrong. It needs no daemon and no root, and changes and starts nothing; with `sudo` it sees
what is closed to others (the state folder, a model in it).

```
sudo skipctl doctor                             # every check, and a remedy below each that is not well
skipctl doctor --json                           # failures, warnings, findings[]: name, state, problem, seen, remedy
skipctl doctor --config FILE --socket PATH      # a private run
```

| state | |
|---|---|
| ok | as it should be |
| warning | it serves, with less than it could have; what concerns the GPU is a failure where the configuration says `backend = \"cuda\"`, as the CPU is no way out then |
| failure | something that was asked for does not work |
| not applicable | there is nothing to look at (`–` in the table) |

The exit code is 0 where nothing failed, warnings or not, and 12 where something did. What is looked at for the *daemon's user* is user skipd where the package is
installed, and else whoever asks: a private run is the caller's. A service that the first client would start is not started for the sake of being asked.
What is told of boards is from what is reported of them; no board has run it.

";

fn page() -> String {
    let mut page = HEAD.to_owned();
    for (check, _) in CHECKS {
        // Infallible: a string takes all.
        let _ = writeln!(page, "## {}\n\nWhether {}.{}\n", check.name, check.about, unless(check.unless));
        page.push_str("| found | state | remedy |\n|---|---|---|\n");
        for problem in check.problems {
            let remedy = placeholders(problem.remedy).replace('|', "\\|");
            let _ = writeln!(page, "| {} | {} | {remedy} |", problem.when, problem.state.name());
        }
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page + "\n"
}

fn unless(unless: Option<&str>) -> String {
    unless.map_or(String::new(), |when| format!(" Not applicable where {when}."))
}

/// `{user}` is USER.
fn placeholders(remedy: &str) -> String {
    let mut parts = remedy.split(['{', '}']);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.enumerate().fold(first, |text, (i, part)| if i % 2 == 0 { text + &part.to_uppercase() } else { text + part })
}

#[test]
fn the_doctor_page_is_the_one_in_the_tree() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    let page = page();
    if std::env::var_os("SKIPD_WRITE_DOCS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    assert!(
        page == std::fs::read_to_string(&file).unwrap_or_default(),
        "docs/doctor.md is not current: SKIPD_WRITE_DOCS=1 tools/test pages"
    );
}

#[test]
fn every_problem_is_a_warning_or_a_failure_with_a_remedy() {
    for (check, _) in CHECKS {
        assert!(!check.problems.is_empty(), "{}", check.name);
        for problem in check.problems {
            assert!(problem.state >= State::Warning && !problem.remedy.is_empty(), "{}: {}", check.name, problem.when);
        }
    }
}
