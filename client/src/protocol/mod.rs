//! Every message of socket and bus as a type, with no I/O: what the daemon reads and writes, clients write and read.
//! The field documentation here is the protocol's reference; the protocol page is made from it.

pub mod activity;
pub mod bias;
pub mod calibrate;
pub mod completion;
pub mod error;
pub mod evaluate;
pub mod event;
mod fields;
pub mod finish;
pub mod form;
pub mod jobs;
pub mod names;
pub mod options;
pub mod prefixes;
pub mod price;
pub mod profile;
pub mod prompt;
pub mod request;
pub mod routes;
pub mod status;
pub mod tables;
pub mod tools;
pub mod unsupported;
pub mod update;
pub mod usage;
mod words;

pub use activity::{Activity, Others, ProcessStatus, RequestState, RequestStatus, Skips, Speed, Totals};
pub use bias::LogitBias;
pub use calibrate::{CalibrateOptions, CalibratePhase, Calibrated, CalibratedPhase, CalibratedRow, CalibratedTier, CheckedBin};
pub use completion::{
    Answered, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatLogprobs, Completion, CompletionChoice, Delta, LogprobEntry,
    ModelCard, ModelList, TextLogprobs, TopLogprob,
};
pub use error::{Error, ErrorBody, ErrorKind};
pub use evaluate::EvaluateOptions;
pub use event::{RequestHandle, StreamEvent};
pub use finish::FinishReason;
pub use form::{JsonSchema, ResponseFormat, StructuredOutputs};
pub use jobs::{JobList, JobState, JobStatus, KernelVerdict, Qualification, StartJob, Verdict};
pub use options::{GenerationOptions, Priority, RequestTables, SkipdOptions, StreamOptions, milliseconds};
pub use prefixes::{PinPrefix, Prefix, PrefixList};
pub use price::{BreakEven, Price, PriceAccuracy, PriceLayers, PriceOptions, PriceSpeed};
pub use profile::{ApplyProfile, BoardStatus, ClockState, ClockStatus, ProfileInfo, ProfileShow};
pub use prompt::{ChatMessage, Content, Prompt, Stop};
pub use request::{ChatRequest, CompletionRequest};
pub use skip_tables::Phase;
pub use status::{
    Availability, AvailabilityState, BackendStatus, BackgroundStatus, CacheStatus, LoadStatus, MemoryStatus, ModelStatus, QueueStatus,
    ReadStatus, Ready, Shares, State, Status, TableNames, TokenizeRequest, TokenizeResponse,
};
pub use tables::{DecidedBy, Pending, PhaseTable, Selector, SetTable, SetTableOptions, TableRow, TableShow, Tier, TierList};
pub use tools::{CalledFunction, FunctionDelta, Tool, ToolCall, ToolCallDelta, ToolChoice};
pub use update::{ApplyUpdate, Probation, UpdateShow, UpdateSlot};
pub use usage::{DecodeUsage, PrefillUsage, SkipdUsage, Timings, Usage};
pub use words::words;
