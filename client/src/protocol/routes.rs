//! The socket's routes: what each takes and answers, and who may.

use super::names;

/// One method of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// HTTP method.
    pub method: &'static str,
    /// Path, with `{…}` for a part that varies.
    pub path: &'static str,
    /// What it does.
    pub words: &'static str,
    /// Type of the body; empty: none is read.
    pub takes: &'static str,
    /// Type of the answer, of status 200 where nothing else is said; empty: see the words.
    pub answers: &'static str,
    /// Who may.
    pub who: Who,
}

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Whoever can open the socket.
    Everybody,
    /// Members of the group that generates, and administrators.
    Members,
    /// uid 0 and the daemon's own.
    Administrators,
}

impl Who {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Who::Everybody => "everybody",
            Who::Members => "members",
            Who::Administrators => "administrators",
        }
    }
}

use Who::{Administrators, Everybody, Members};

/// All routes that do something.
pub const ROUTES: &[Route] = &[
    post(names::CHAT_COMPLETIONS, "answer a conversation; with `stream`, events of `ChatChunk`", "ChatRequest", "ChatCompletion", Members),
    post(names::COMPLETIONS, "continue a text; with `stream`, events of the same shape", "CompletionRequest", "Completion", Members),
    get(names::MODELS, "the loaded model", "ModelList", Everybody),
    get("/v1/models/{id}", "the same by its name, or by `default`", "ModelCard", Everybody),
    get(names::HEALTH, "200 while the process lives", "", Everybody),
    get(names::READY, "200 when requests are served, else 503", "Ready", Everybody),
    get(names::METRICS, "OpenMetrics text: [metrics](metrics.md)", "", Everybody),
    get(names::STATUS, "what the daemon is", "Status", Everybody),
    get(names::REQUESTS, "the requests under way", "Activity", Everybody),
    get(names::TABLES, "tables in force, and why", "TableShow", Everybody),
    get("/skipd/v1/tables/{phase}", "one of them: `prefill` or `decode`", "PhaseTable", Everybody),
    Route {
        method: "PUT",
        path: "/skipd/v1/tables/{phase}",
        words: "put a table in force for new requests",
        takes: "SetTable",
        answers: "PhaseTable",
        who: Administrators,
    },
    post(names::TABLES_CONFIRM, "keep the tables on trial", "", "TableShow", Administrators),
    post(names::TABLES_REVERT, "take them back", "", "TableShow", Administrators),
    post(names::TABLES_RELOAD, "read all table files again", "", "TableShow", Administrators),
    get(names::TIERS, "the checkpoint's ladders", "TierList", Everybody),
    get(names::PREFIXES, "pinned prefixes", "PrefixList", Everybody),
    post(names::PREFIXES, "pin one; answers when it is computed", "PinPrefix", "Prefix", Administrators),
    Route {
        method: "DELETE",
        path: "/skipd/v1/prefixes/{name}",
        words: "drop one, which is answered",
        takes: "",
        answers: "Prefix",
        who: Administrators,
    },
    get(names::UPDATE, "what updates over the air brought", "UpdateShow", Everybody),
    post(
        names::UPDATE_APPLY,
        "verify a bundle (or the archive itself as the body) and put it on trial",
        "ApplyUpdate",
        "UpdateShow",
        Administrators,
    ),
    post(names::UPDATE_ROLLBACK, "end the trial, or go back to the update before, or to none", "", "UpdateShow", Administrators),
    get(names::PROFILE, "the board, its clocks and its clock profiles", "ProfileShow", Everybody),
    post(
        names::PROFILE_APPLY,
        "pin the clocks of a profile; answers when they are read back",
        "ApplyProfile",
        "ProfileShow",
        Administrators,
    ),
    post(names::PROFILE_RELEASE, "put the clocks back as they were", "", "ProfileShow", Administrators),
    post(names::TOKENIZE, "the tokens of a text", "TokenizeRequest", "TokenizeResponse", Members),
    post(names::DRAIN, "take nothing new; answers when nothing runs", "", "Ready", Administrators),
    get(names::JOBS, "all jobs", "JobList", Everybody),
    post(names::JOBS, "start a job", "StartJob", "JobStatus", Administrators),
    get("/skipd/v1/jobs/{id}", "one job", "JobStatus", Everybody),
    post("/skipd/v1/jobs/{id}/cancel", "end it at the next chance", "", "JobStatus", Administrators),
];

const fn get(path: &'static str, words: &'static str, answers: &'static str, who: Who) -> Route {
    Route { method: "GET", path, words, takes: "", answers, who }
}

const fn post(path: &'static str, words: &'static str, takes: &'static str, answers: &'static str, who: Who) -> Route {
    Route { method: "POST", path, words, takes, answers, who }
}
