//! Scale tables: the tables of a config.json, a table file, and the body that sets one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skip_client::protocol::SetTable;
use skip_tables::{Document, Phase, TableFile};

fuzz_target!(|bytes: &[u8]| {
    let _ = Document::parse(bytes);
    let _ = SetTable::from_json(bytes);
    let Ok(mut file) = TableFile::parse(bytes) else { return };
    // Looked up, not carried.
    file.unread.clear();
    for phase in Phase::ALL {
        if let Some(Ok(found)) = file.modelopt[phase].take() {
            assert!(found.s() > 0.0 && found.table.rows().len() == 1, "{found:?}");
        }
    }
    let written = serde_json::to_vec(&file.to_object()).expect("an object is JSON");
    let again = TableFile::parse(&written).expect("what was read can be written and read");
    assert!(again == file, "{file:?} came back as {again:?}");
    for phase in Phase::ALL {
        if let Some(table) = file.phase(phase).deployed.table() {
            for length in [0, 1, 1024, 32_768, usize::MAX] {
                if let Some(ln_lambda) = table.ln_lambda(length) {
                    assert!(table.row_at(length).is_some() && ln_lambda <= 0.0, "{table:?} at {length}");
                }
            }
        }
    }
});
