//! Names that both ends must spell alike: bus name, object, interfaces, routes, environment.

/// Well-known bus name.
pub const BUS_NAME: &str = "org.skipd.Skipd1";
/// Object path of all interfaces but `.Request`.
pub const OBJECT_PATH: &str = "/org/skipd/Skipd1";
/// Requests live under this path: `<this>/<sender>/<handle_token>`.
pub const REQUEST_PATH_PREFIX: &str = "/org/skipd/Skipd1/request";
/// Generation and the daemon's state.
pub const MANAGER_INTERFACE: &str = "org.skipd.Skipd1.Manager";
/// Scale tables.
pub const TABLES_INTERFACE: &str = "org.skipd.Skipd1.Tables";
/// Pinned prefixes.
pub const PREFIXES_INTERFACE: &str = "org.skipd.Skipd1.Prefixes";
/// Starting jobs.
pub const JOBS_INTERFACE: &str = "org.skipd.Skipd1.Jobs";
/// One job.
pub const JOB_INTERFACE: &str = "org.skipd.Skipd1.Job";
/// Jobs live under this path: `<this>/<id>`.
pub const JOB_PATH_PREFIX: &str = "/org/skipd/Skipd1/job";
/// Updates over the air.
pub const UPDATE_INTERFACE: &str = "org.skipd.Skipd1.Update";
/// Clock profiles.
pub const PROFILE_INTERFACE: &str = "org.skipd.Skipd1.Profile";
/// One running request.
pub const REQUEST_INTERFACE: &str = "org.skipd.Skipd1.Request";

/// Bus option (`b`) of the generating methods, of `SetTable` and of `Pin`: error replies then carry, behind their words, an `a{sv}` with `param` and `details`.
/// Off by default because GLib shows an error's words only where they are the whole of its body.
pub const ERROR_DETAILS: &str = "error_details";

/// Environment variable that names the socket.
pub const SOCKET_ENV: &str = "SKIPD_SOCKET";
/// Where the socket is on a device.
pub const SYSTEM_SOCKET: &str = "/run/skipd/skipd.sock";
/// The socket's name under `$XDG_RUNTIME_DIR` in a private run.
pub const USER_SOCKET: &str = "skipd.sock";

/// The model name that always means the loaded one.
pub const DEFAULT_MODEL: &str = "default";

/// POST: chat completions.
pub const CHAT_COMPLETIONS: &str = "/v1/chat/completions";
/// POST: text completions.
pub const COMPLETIONS: &str = "/v1/completions";
/// GET: the model list.
pub const MODELS: &str = "/v1/models";
/// GET: 200 while the process lives.
pub const HEALTH: &str = "/health";
/// GET: 200, or 503 with state and progress.
pub const READY: &str = "/ready";
/// GET: Prometheus text.
pub const METRICS: &str = "/metrics";
/// GET: [`Status`](super::Status).
pub const STATUS: &str = "/skipd/v1/status";
/// GET: [`Activity`](super::Activity).
pub const REQUESTS: &str = "/skipd/v1/requests";
/// GET: [`TableShow`](super::TableShow); with `/{phase}` GET [`PhaseTable`](super::PhaseTable), PUT [`SetTable`](super::SetTable).
pub const TABLES: &str = "/skipd/v1/tables";
/// POST: keep the pending tables; answers [`TableShow`](super::TableShow).
pub const TABLES_CONFIRM: &str = "/skipd/v1/tables/confirm";
/// POST: go back to the tables before the pending ones; answers [`TableShow`](super::TableShow).
pub const TABLES_REVERT: &str = "/skipd/v1/tables/revert";
/// POST: read all table files again; answers [`TableShow`](super::TableShow).
pub const TABLES_RELOAD: &str = "/skipd/v1/tables/reload";
/// GET: [`TierList`](super::TierList).
pub const TIERS: &str = "/skipd/v1/tiers";
/// POST: refuse new requests, finish the rest; answers when idle.
pub const DRAIN: &str = "/skipd/v1/drain";
/// GET: [`JobList`](super::JobList); POST: [`StartJob`](super::StartJob) → [`JobStatus`](super::JobStatus); with `/{id}` GET
/// [`JobStatus`](super::JobStatus); with `/{id}/cancel` POST.
pub const JOBS: &str = "/skipd/v1/jobs";
/// GET: [`PrefixList`](super::PrefixList); POST: [`PinPrefix`](super::PinPrefix) → [`Prefix`](super::Prefix), once it is computed; with `/{name}`
/// DELETE, which answers the [`Prefix`](super::Prefix) that was dropped.
pub const PREFIXES: &str = "/skipd/v1/prefixes";
/// GET: [`UpdateShow`](super::UpdateShow).
pub const UPDATE: &str = "/skipd/v1/update";
/// POST: a bundle's archive, or [`ApplyUpdate`](super::ApplyUpdate); answers [`UpdateShow`](super::UpdateShow) when it is verified and on trial.
pub const UPDATE_APPLY: &str = "/skipd/v1/update/apply";
/// POST: end the trial, or go back to the update before, or to none; answers [`UpdateShow`](super::UpdateShow).
pub const UPDATE_ROLLBACK: &str = "/skipd/v1/update/rollback";
/// GET: [`ProfileShow`](super::ProfileShow).
pub const PROFILE: &str = "/skipd/v1/profile";
/// POST: [`ApplyProfile`](super::ApplyProfile) → [`ProfileShow`](super::ProfileShow), once the clocks are written and read back.
pub const PROFILE_APPLY: &str = "/skipd/v1/profile/apply";
/// POST: put back what was there before; answers [`ProfileShow`](super::ProfileShow).
pub const PROFILE_RELEASE: &str = "/skipd/v1/profile/release";
/// POST: [`TokenizeRequest`](super::TokenizeRequest) → [`TokenizeResponse`](super::TokenizeResponse).
pub const TOKENIZE: &str = "/skipd/v1/tokenize";

/// Header with which a client names its request, 1 to 128 of `A-Z a-z 0-9 . _ : / -`; every answer has it, with the daemon's own name where the client
/// gave none. Logs and [`Activity`](super::Activity) name requests by it.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// Response header that names fields which were read but not acted on.
pub const IGNORED_HEADER: &str = "x-skipd-ignored";
