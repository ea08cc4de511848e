//! The help of every command, as snapshots; and that man pages and completions come from the same definition.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

fn skipctl(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skipctl"));
    command.args(args).env("COLUMNS", "100").env_remove("SKIPD_SOCKET");
    command
}

fn help(args: &[&str]) -> String {
    let output = skipctl(args).arg("--help").output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

macro_rules! help_is_as_recorded {
    ($($name:ident: $($arg:literal)*;)+) => {$(
        #[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), help(&[$($arg),*]));
        }
    )+};
}

help_is_as_recorded! {
    skipctl_help: ;
    status: "status";
    top: "top";
    generate: "generate";
    chat: "chat";
    run: "run";
    set_table: "set-table";
    confirm: "confirm";
    revert: "revert";
    table: "table";
    table_show: "table" "show";
    table_check: "table" "check";
    table_export: "table" "export";
    table_reload: "table" "reload";
    tiers: "tiers";
    prefix: "prefix";
    prefix_pin: "prefix" "pin";
    prefix_list: "prefix" "list";
    prefix_drop: "prefix" "drop";
    update: "update";
    profile: "profile";
    profile_apply: "profile" "apply";
    update_apply: "update" "apply";
    import: "import";
    qualify: "qualify";
    bench: "bench";
    drain: "drain";
    doctor: "doctor";
    completions: "completions";
}

#[test]
fn every_command_has_a_man_page() {
    let dir = tempfile::tempdir().unwrap();
    assert!(skipctl(&["man"]).arg(dir.path()).status().unwrap().success());
    for page in
        ["skipctl.1", "skipctl-generate.1", "skipctl-set-table.1", "skipctl-table-export.1", "skipctl-prefix-pin.1", "skipctl-doctor.1"]
    {
        let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    let main = std::fs::read_to_string(dir.path().join("skipctl.1")).unwrap();
    assert!(main.contains("no skipd answers"), "exit codes belong on the page");
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = skipctl(&["completions", shell]).output().unwrap();
        assert!(String::from_utf8(output.stdout).unwrap().contains("set-table"), "{shell}");
    }
}
