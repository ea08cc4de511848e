use super::*;
use clap::Parser;

fn cli(args: &[&str]) -> Cli {
    Cli::parse_from(std::iter::once("skipd").chain(args.iter().copied()))
}

fn load(files: &[(&str, &str)], args: &[&str]) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("skipd.d")).unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let main = dir.path().join("skipd.toml");
    let mut args: Vec<&str> = args.to_vec();
    args.extend(["--config", main.to_str().unwrap()]);
    Config::load(cli(&args))
}

#[test]
fn flags_win_over_drop_ins_and_drop_ins_over_the_file() {
    let config = load(
        &[
            ("skipd.toml", "model = \"/m/base\"\nqueue = 1\nkv-tokens = 100\n"),
            ("skipd.d/10-a.toml", "queue = 2\nbus = \"none\"\n"),
            ("skipd.d/20-b.toml", "queue = 3\n"),
            ("skipd.d/ignored.txt", "not toml at all"),
        ],
        &["--bus", "session"],
    )
    .unwrap();
    assert_eq!((config.queue, config.kv_tokens, config.bus), (3, Some(100), Bus::Session));
    assert_eq!(config.model_name, "base");
}

#[test]
fn an_unknown_key_is_an_error_that_names_it_and_the_file() {
    let error = load(&[("skipd.toml", "model = \"/m\"\nqeue = 1\n")], &[]).unwrap_err().to_string();
    assert!(error.contains("qeue") && error.contains("skipd.toml"), "{error}");
    let error = load(&[("skipd.toml", "model = \"/m\"\nqueue = \"long\"\n")], &[]).unwrap_err().to_string();
    assert!(error.contains("expected a whole number from 0") && error.contains("queue = ") && !error.contains("usize"), "{error}");
}

#[test]
fn a_named_file_that_is_missing_is_an_error() {
    assert!(matches!(load(&[], &["--model", "/m"]), Err(ConfigError::Read { .. })));
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    for (flag, value) in [("--kv", "nvfp4"), ("--kv", "fp8"), ("--kv-shadow", "nvfp4"), ("--kv-shadow", "fp8")] {
        let error = Config::check(cli(&["--model", "/m", flag, value]).settings).unwrap_err();
        assert!(matches!(error, ConfigError::NotBuilt { key, .. } if key == flag), "{flag} {value}: {error}");
        assert!(error.to_string().contains(value));
    }
}

#[test]
fn nonsense_values_name_the_flag() {
    for (flag, value) in [
        ("--kv", "int3"),
        ("--precision", "fp64"),
        ("--backend", "tpu"),
        ("--qualify", "never"),
        ("--queue", "0"),
        ("--background-duty", "0"),
        ("--background-duty", "101"),
        ("--bus", "systemwide"),
        ("--drain-seconds", "-1"),
    ] {
        let args = ["--model", "/m", &format!("{flag}={value}")];
        let error = Config::check(cli(&args).settings).unwrap_err().to_string();
        assert!(error.starts_with(flag), "{error}");
    }
    assert!(matches!(Config::check(Settings::default()), Err(ConfigError::Missing("--model"))));
}

#[test]
fn every_flag_is_a_key_of_the_file() {
    use clap::CommandFactory;
    let command = Cli::command();
    // Hidden ones are for tests.
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let Some(flag) = arg.get_long().filter(|f| !matches!(*f, "config" | "help" | "version")) else { continue };
        let as_text = toml::from_str::<Settings>(&format!("{flag} = \"1\"\n"));
        let as_number = toml::from_str::<Settings>(&format!("{flag} = 1\n"));
        assert!(as_text.is_ok() || as_number.is_ok(), "{flag} is no key: {as_text:?}");
    }
}

#[test]
fn paths_that_are_written_are_whole_and_none_is_empty() {
    let config = Config::check(cli(&["--model", "/m", "--state-dir", "state", "--tables", "./t/tables.json"]).settings).unwrap();
    let here = std::env::current_dir().unwrap();
    assert_eq!((config.state_dir, config.tables_file), (here.join("state"), here.join("t/tables.json")));
    // The command line itself takes no empty value.
    for (key, named) in [("state-dir", "--state-dir"), ("tables", "--tables")] {
        let error = load(&[("skipd.toml", &format!("model = \"/m\"\n{key} = \"\"\n"))], &[]).unwrap_err();
        assert!(matches!(error, ConfigError::Invalid { key, .. } if key == named), "{error}");
    }
}
