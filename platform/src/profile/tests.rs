use super::*;
use crate::sysfs::Rooted;

const WHOLE: &str = r#"
about = "all keys"
board = "thor"
nvpmodel = "MAXN"
emc = "max"
fan = 255
tolerated-celsius = 95.0
[[gpu]]
nodes = ["gpu-gpc-0"]
target = 1_575_000_000
[cpu]
governor = "performance"
min = "max"
"#;

#[test]
fn every_key_is_read() {
    let profile = Profile::parse("x", WHOLE).unwrap();
    assert_eq!((profile.board, profile.mode.as_deref(), profile.emc), (Some(BoardKind::Thor), Some("MAXN"), Some(Target::Max)));
    assert_eq!(profile.gpu, [GpuDomain { nodes: vec!["gpu-gpc-0".into()], target: Target::AtMost(1_575_000_000) }]);
    assert_eq!((profile.fan, profile.tolerated, profile.cpu.min), (Some(255), Some(95.0), Some(Target::Max)));
}

#[test]
fn what_is_wrong_is_named() {
    for (from, to, said) in [
        ("fan = 255", "fan = 256", "256"),
        ("fan = 255", "pump = 1", "pump"),
        ("95.0", "950.0", "tolerated-celsius"),
        ("1_575_000_000", "1575", "gpu.target"),
        ("min = \"max\"", "min = \"most\"", "cpu.min"),
        ("gpu-gpc-0", "../x", "gpu.nodes"),
        ("[\"gpu-gpc-0\"]", "[]", "gpu.nodes"),
        ("\"performance\"", "\"a b\"", "cpu.governor"),
        ("\"MAXN\"", "\"\"", "nvpmodel"),
        ("\"all keys\"", "\"\"", "about"),
        ("\"thor\"", "\"xavier\"", "xavier"),
    ] {
        let wrong = WHOLE.replacen(from, to, 1);
        assert_ne!(wrong, WHOLE, "{from}");
        let error = Profile::parse("x", &wrong).unwrap_err().to_string();
        assert!(error.contains(said), "{from} → {to}: {error}");
    }
    assert!(Profile::parse("x", &format!("{WHOLE}{}", "#".repeat(20_000))).unwrap_err().to_string().contains("longer"));
}

#[test]
fn what_comes_with_skipd_is_right_and_an_administrator_s_file_of_the_name_wins() {
    let root = tempfile::tempdir().unwrap();
    let files = Rooted::new(root.path());
    let profiles = Profiles::new(&files);
    assert_eq!(profiles.names().len(), SHIPPED.len());
    for name in profiles.names() {
        profiles.load(&name).unwrap();
    }
    let folder = root.path().join("etc/skipd/profiles");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("thor-maxn.toml"), WHOLE).unwrap();
    std::fs::write(folder.join("own.toml"), "about = 1").unwrap();
    assert_eq!(profiles.load("thor-maxn").unwrap().about, "all keys");
    assert!(profiles.names().contains(&"own".to_owned()));
    assert!(matches!(profiles.load("own"), Err(ProfileError::Malformed { .. })));
    for name in ["none", "../own", "", "-x"] {
        assert!(matches!(profiles.load(name), Err(ProfileError::Unknown(..))), "{name}");
    }
}
