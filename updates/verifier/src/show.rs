//! A store for people and for programs.

use serde_json::{Value, json};
use skip_update::clock::shown;
use skip_updates::{Slot, View};
use std::fmt::Write;

/// For programs.
pub fn json(view: &View) -> Value {
    json!({
        "active": view.active.as_ref().map(slot),
        "previous": view.previous.as_ref().map(slot),
        "trial": view.trial.as_ref().map(slot),
        "tries_left": view.state.tries_left,
        "reason": view.state.reason,
        "floor": view.floor,
        "problems": view.problems,
    })
}

fn slot(slot: &Slot) -> Value {
    json!({
        "slot": slot.name,
        "version": slot.manifest.version,
        "created": slot.manifest.created,
        "note": slot.manifest.note,
        "checkpoint": slot.entry.checkpoint,
        "name": slot.entry.name,
        "tables": slot.path,
    })
}

/// For people.
pub fn text(view: &View) -> String {
    let mut text = String::new();
    for (what, slot) in [("in force", &view.active), ("before it", &view.previous), ("on trial", &view.trial)] {
        let line = slot
            .as_ref()
            .map_or_else(|| "none".to_owned(), |slot| format!("{} of {}  {}", slot.name, shown(slot.manifest.created), slot.manifest.note));
        // Writing to a string does not fail.
        let _ = writeln!(text, "{what}: {}", line.trim_end());
    }
    if view.trial.is_some() {
        let _ = writeln!(text, "tries left: {}", view.state.tries_left);
    }
    if let Some(reason) = &view.state.reason {
        let _ = writeln!(text, "last: {reason}");
    }
    for problem in &view.problems {
        let _ = writeln!(text, "damaged: {problem}");
    }
    let _ = write!(text, "updates above version {} are taken", view.floor);
    text
}
