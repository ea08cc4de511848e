//! Heads and shards that are not where the folder says they are.

use super::*;

const HEAD: &str = "lm_head.weight";

fn with_head(tied: bool) -> Folder {
    let mut folder = Folder::new().with("tie_word_embeddings", json!(tied));
    folder.shapes.insert(HEAD.into(), vec![12, 8]);
    folder
}

#[test]
fn an_untied_head_is_its_own_matrix() {
    let folder = with_head(false);
    folder.write();
    let checkpoint = folder.open().unwrap();
    assert_ne!(checkpoint.embedding().unwrap().range, checkpoint.head().unwrap().range);
}

#[test]
fn an_untied_head_that_is_absent_is_named() {
    let error = Folder::new().with("tie_word_embeddings", json!(false)).error();
    assert!(matches!(&error, CheckpointError::HeadMissing), "{error}");
    assert!(error.to_string().contains("`lm_head.weight` is missing") && error.to_string().contains("tie_word_embeddings"), "{error}");
}

#[test]
fn a_tied_head_may_be_a_copy_and_nothing_else() {
    let mut folder = with_head(true);
    folder.write();
    let checkpoint = folder.open().unwrap();
    assert_eq!(checkpoint.embedding().unwrap().range, checkpoint.head().unwrap().range);
    folder.zero = Some(HEAD);
    let error = folder.error();
    assert!(matches!(&error, CheckpointError::HeadDiffers) && error.to_string().contains("tie_word_embeddings"), "{error}");
    folder.shapes.insert(HEAD.into(), vec![11, 8]);
    assert!(matches!(folder.error(), CheckpointError::Shape { name, .. } if name == HEAD));
}

/// Two shards and an index of `named` tensors, which says that all lie in the first but those of the second layer.
fn sharded(folder: &Folder, named: impl Fn(&str) -> String) {
    let first = |name: &str| name < "model.layers.1";
    folder.file("config.json", folder.config.to_string());
    folder.file("a.safetensors", folder.safetensors(first));
    folder.file("b.safetensors", folder.safetensors(|name| !first(name)));
    let shard = |name: &String| (named(name), if first(name) { "a.safetensors" } else { "b.safetensors" });
    let map: BTreeMap<String, &str> = folder.shapes.keys().map(shard).collect();
    folder.file("model.safetensors.index.json", json!({"weight_map": map}).to_string());
}

#[test]
fn shards_are_found_through_their_index() {
    let folder = Folder::new();
    sharded(&folder, str::to_owned);
    folder.open().unwrap();

    std::fs::remove_file(folder.dir.path().join("b.safetensors")).unwrap();
    let error = folder.open().err().unwrap();
    assert!(matches!(&error, CheckpointError::ShardMissing { shard, .. } if shard == "b.safetensors"), "{error}");

    folder.file("b.safetensors", folder.safetensors(|_| true));
    let error = folder.open().err().unwrap();
    assert!(matches!(error, CheckpointError::TensorTwice { .. }), "{error}");
}

#[test]
fn an_index_with_another_prefix_than_its_shards_is_refused_with_both_names() {
    let folder = Folder::new();
    for (named, found) in [("language_model.model.norm.weight", "model.norm.weight"), ("norm.weight", "model.norm.weight")] {
        sharded(&folder, |name| if name == "model.norm.weight" { named.into() } else { name.into() });
        let error = folder.open().err().unwrap();
        assert!(
            matches!(&error, CheckpointError::IndexMismatch { name, shard, found: Some(f) }
                if name == named && f == found && shard == "b.safetensors"),
            "{error}"
        );
    }
}

#[test]
fn an_index_that_names_the_wrong_shard_or_no_tensor_is_refused() {
    let folder = Folder::new();
    sharded(&folder, |name| if name == "model.norm.weight" { "model.other.weight".into() } else { name.into() });
    let error = folder.open().err().unwrap();
    assert!(matches!(&error, CheckpointError::IndexMismatch { name, found: None, .. } if name == "model.other.weight"), "{error}");
    sharded(&folder, str::to_owned);
    folder.file("a.safetensors", folder.safetensors(|name| name >= "model.layers.1"));
    folder.file("b.safetensors", folder.safetensors(|name| name < "model.layers.1"));
    assert!(matches!(folder.open().err().unwrap(), CheckpointError::IndexMismatch { found: None, .. }), "shards exchanged");
}

#[test]
fn names_without_the_usual_prefix_are_found() {
    let mut folder = Folder::new();
    folder.shapes = folder.shapes.iter().map(|(name, shape)| (name.trim_start_matches("model.").to_owned(), shape.clone())).collect();
    folder.write();
    assert_eq!(folder.open().unwrap().final_norm().unwrap(), [1.0; 8]);
}
