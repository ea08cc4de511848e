/*
 * skipd for C and C++: requests to a language model on this machine, over skipd's Unix socket or D-Bus.
 *
 * Errors      Functions that can fail return SKIPD_OK or one of the codes below, and take a last argument `error`. Where it is not NULL,
 *             *error becomes NULL on success, or an error that the caller frees with skipd_error_free. NULL where a pointer is needed, and
 *             text that is not UTF-8, are SKIPD_INVALID_REQUEST. No exception, signal or abort crosses this interface.
 * Ownership   What a function gives through a `**` argument belongs to the caller and is freed by the function named there, which takes
 *             NULL too. On an error it is set to NULL. Pointers returned as `const` belong to the handle they were asked of.
 * Threads     A client may be used by several threads at once. A request belongs to one thread at a time. A stream is read by one thread;
 *             skipd_stream_cancel may be called by any other meanwhile. Nobody may use what is being freed. A client keeps one thread of
 *             its own, which does not survive fork: connect after it.
 * Waiting     Nobody waits for ever for a daemon that hangs: skipd_client_set_timeout. A client stays good when the daemon is started again:
 *             after an error for which skipd_code_away says so, wait with skipd_wait_ready and send again.
 * Units       Times are milliseconds, lengths of text bytes without the closing NUL. Text is UTF-8.
 *
 * `pkg-config --cflags --libs skipd` after tools/install-client; or link with libskipd_client.a and -lpthread -ldl -lm (-lgcc_s with a C
 * compiler). Unstable until 1.0: until then each minor version is a shared library of its own name (libskipd_client.so.0.1).
 */
#ifndef SKIPD_H
#define SKIPD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong, as far as a caller can act on it. The names on the socket and on D-Bus: docs/interfaces.md. */
enum {
    SKIPD_OK = 0,
    SKIPD_INVALID_REQUEST = 1,     /* a field or argument is missing or wrong; skipd_error_param names it */
    SKIPD_UNSUPPORTED = 2,         /* a field that would change the answer and that skipd does not do */
    SKIPD_CONTEXT_OVERFLOW = 3,    /* prompt and answer do not fit the context; the details hold the counts */
    SKIPD_CACHE_TOO_SMALL = 4,     /* the request needs more cache than the daemon has */
    SKIPD_TOO_LARGE = 5,           /* the request is larger than the daemon reads */
    SKIPD_NOT_FOUND = 6,           /* no such route, phase or object */
    SKIPD_MODEL_NOT_FOUND = 7,     /* the request names a model that is not loaded */
    SKIPD_METHOD_NOT_ALLOWED = 8,  /* the route exists, for another method */
    SKIPD_TABLE_REFUSED = 9,       /* a table, tier or selector was refused; the old one stays */
    SKIPD_NOTHING_PENDING = 10,    /* there is nothing to confirm or revert */
    SKIPD_ACCESS_DENIED = 11,      /* the caller may not do this */
    SKIPD_UNAUTHENTICATED = 12,    /* the key is missing or wrong (TCP alone) */
    SKIPD_BUSY = 13,               /* the queue is full; the details hold retry_after_s */
    SKIPD_NOT_READY = 14,          /* the model is still loading */
    SKIPD_DRAINING = 15,           /* the daemon takes nothing new */
    SKIPD_CANCELLED = 16,          /* the request was cancelled */
    SKIPD_DEADLINE = 17,           /* the request's deadline passed */
    SKIPD_SLOW_READER = 18,        /* the stream was read too slowly */
    SKIPD_SHUTDOWN = 19,           /* the daemon is shutting down */
    SKIPD_DEVICE_FAULT = 20,       /* the device failed; the daemon restarts */
    SKIPD_INTERNAL = 21,           /* a fault in the daemon or in this library */
    SKIPD_UNREACHABLE = 22,        /* no daemon answers */
    SKIPD_PROTOCOL = 23,           /* the answer is not the protocol's */
    SKIPD_DISCONNECTED = 24        /* the connection broke before the end */
};

/* What skipd_stream_next found. */
enum {
    SKIPD_EVENT_NONE = 0,      /* nothing within the time; the request runs on */
    SKIPD_EVENT_TEXT = 1,      /* skipd_stream_text */
    SKIPD_EVENT_TOOL_CALL = 2, /* more of a call of a function: skipd_stream_event */
    SKIPD_EVENT_FINISHED = 3,  /* the terminal event: skipd_stream_reason, skipd_stream_usage */
    SKIPD_EVENT_END = 4        /* nothing follows: the stream had ended, or broke (then with its error) */
};

typedef struct skipd_error skipd_error;
typedef struct skipd_client skipd_client;
typedef struct skipd_request skipd_request;
typedef struct skipd_stream skipd_stream;

/* This library's version, such as "0.1.0". */
const char *skipd_version(void);
/* The name of a code as the socket spells it ("context_length_exceeded"), "ok", or "unknown". */
const char *skipd_code_name(int code);
/* Whether the daemon is away (it starts, ends, hangs or is not there), so that the same client serves again when it is back. */
bool skipd_code_away(int code);

int skipd_error_code(const skipd_error *error);
/* For a person: the field first where there is one, names and numbers; never text of a prompt. */
const char *skipd_error_message(const skipd_error *error);
/* The field or argument at fault; NULL where there is none. */
const char *skipd_error_param(const skipd_error *error);
/* Numbers for a program, a JSON object: {"retry_after_s": 1}. */
const char *skipd_error_details(const skipd_error *error);
void skipd_error_free(skipd_error *error);

/* Frees text that this library gave through a `char **`. */
void skipd_string_free(char *text);

/*
 * Connects to the daemon's socket. `path` NULL: $SKIPD_SOCKET, else /run/skipd/skipd.sock, else $XDG_RUNTIME_DIR/skipd.sock.
 * Freed by skipd_client_free; streams of a freed client go on.
 */
int skipd_connect(const char *path, skipd_client **client, skipd_error **error);
/* Connects over D-Bus: "system", "session", or an address such as "unix:path=/run/bus". */
int skipd_connect_bus(const char *address, skipd_client **client, skipd_error **error);
/* As skipd_connect, for a daemon that may not be there yet, and as skipd_wait_ready. */
int skipd_connect_wait(const char *path, uint32_t timeout_ms, skipd_client **client, skipd_error **error);
void skipd_client_free(skipd_client *client);

/*
 * How long a call waits for its answer, and skipd_send for the request to be taken, before it is SKIPD_UNREACHABLE: 30000 where nothing is
 * set, and negative is without end. What takes as long as it takes (an answer's events, a pin, a drain) is waited for as long as the daemon
 * lives: after each such time of silence it is asked for something else, and given up where that is not answered in time either. Holds for
 * later calls; nobody else may use the client meanwhile.
 */
int skipd_client_set_timeout(skipd_client *client, int timeout_ms, skipd_error **error);

/*
 * Waits until requests are served: also for a daemon that is not there, hangs, or drains because it is about to be started again. After
 * `timeout_ms` the error says what stood in the way (SKIPD_NOT_READY while the model loads, SKIPD_UNREACHABLE, SKIPD_DRAINING, …); at once
 * it is SKIPD_NOT_READY where loading has failed.
 */
int skipd_wait_ready(const skipd_client *client, uint32_t timeout_ms, skipd_error **error);
/* The daemon's status as JSON; freed by skipd_string_free, as all JSON below. */
int skipd_status(const skipd_client *client, char **json, skipd_error **error);
/* Both phases' scale tables in force, and why. */
int skipd_tables(const skipd_client *client, char **json, skipd_error **error);
/* The tiers that the checkpoint offers. */
int skipd_tiers(const skipd_client *client, char **json, skipd_error **error);
/*
 * Puts a table in force for new requests, and returns when it is. `phase` is "prefill" or "decode"; `selector` a tier ("50%"), "none", or a
 * table as JSON; `options` NULL or a JSON object of "persist", "confirm_within" (seconds) and "force". `json`, which may be NULL, becomes
 * what skipd_tables says of the phase afterwards.
 */
int skipd_set_table(const skipd_client *client, const char *phase, const char *selector, const char *options, char **json,
                    skipd_error **error);
/* Keeps tables on trial; goes back to those before; reads all table files again. `json` may be NULL. */
int skipd_confirm(const skipd_client *client, char **json, skipd_error **error);
int skipd_revert(const skipd_client *client, char **json, skipd_error **error);
int skipd_reload(const skipd_client *client, char **json, skipd_error **error);
/*
 * Pinned prefixes: beginnings of prompts that stay in the cache, for all users (docs/interfaces.md). `prefix` is a JSON object of "prompt" or
 * "messages", and "tools" and "name" where wanted; pinning returns when it is computed. `json`, which may be NULL, becomes the prefix that was
 * pinned or dropped. Administrators alone pin and drop.
 */
int skipd_prefixes(const skipd_client *client, char **json, skipd_error **error);
int skipd_pin_prefix(const skipd_client *client, const char *prefix, char **json, skipd_error **error);
int skipd_drop_prefix(const skipd_client *client, const char *name, char **json, skipd_error **error);
/* The requests under way: the caller's own, for an administrator all. */
int skipd_activity(const skipd_client *client, char **json, skipd_error **error);
/*
 * Jobs, long work beside serving: all that are remembered (over the socket alone), one, started, ended at the next chance. `options` is NULL
 * or a JSON object. Administrators alone start and cancel.
 */
int skipd_jobs(const skipd_client *client, char **json, skipd_error **error);
int skipd_job(const skipd_client *client, const char *id, char **json, skipd_error **error);
int skipd_start_job(const skipd_client *client, const char *kind, const char *options, char **json, skipd_error **error);
int skipd_cancel_job(const skipd_client *client, const char *id, skipd_error **error);
/*
 * Updates of tables over the air (docs/updates.md): what they brought; a bundle verified and put on trial, returning when the trial begins; and
 * the end of a trial, or back to the update before, or to none. `path` is one that the daemon can read, an archive or a folder, over the socket
 * alone; `relax_expiry` judges expiry by a clock that may be behind. `archive` is `size` bytes of a bundle's archive, over both. The verdict is
 * seen in skipd_update: "probation" becomes null, and "active" is the update or "reason" says why not. SKIPD_TABLE_REFUSED names the failed
 * "check" in its details. `json`, which may be NULL except in skipd_update, becomes what skipd_update says afterwards. Administrators alone
 * apply and roll back.
 */
int skipd_update(const skipd_client *client, char **json, skipd_error **error);
int skipd_apply_update(const skipd_client *client, const char *path, bool relax_expiry, char **json, skipd_error **error);
int skipd_apply_update_archive(const skipd_client *client, const uint8_t *archive, size_t size, char **json, skipd_error **error);
int skipd_roll_back_update(const skipd_client *client, char **json, skipd_error **error);
/* Lets running requests finish and takes no new ones; returns when nothing runs. */
int skipd_drain(const skipd_client *client, skipd_error **error);
/* The token ids of a text; freed by skipd_tokens_free. */
int skipd_tokenize(const skipd_client *client, const char *text, uint32_t **tokens, size_t *count, skipd_error **error);
void skipd_tokens_free(uint32_t *tokens, size_t count);

/* A conversation without messages. Requests are freed by skipd_request_free, and may be sent again. */
int skipd_chat(skipd_request **request, skipd_error **error);
/* A text to be continued. */
int skipd_complete(const char *prompt, skipd_request **request, skipd_error **error);
/* Token ids to be continued. */
int skipd_complete_tokens(const uint32_t *tokens, size_t count, skipd_request **request, skipd_error **error);
void skipd_request_free(skipd_request *request);

/* Adds a message to a conversation: "system", "user", "assistant" or "tool". */
int skipd_request_message(skipd_request *request, const char *role, const char *text, skipd_error **error);
/* Adds a message with more than text, as the JSON object that OpenAI's API takes. */
int skipd_request_message_json(skipd_request *request, const char *message, skipd_error **error);
/*
 * Sets an option: "max_tokens", "temperature", "top_p", "seed", "stop", "response_format", "tools", …, and skipd's own "priority",
 * "deadline_ms", "prefix_reuse" and "tables" (docs/interfaces.md). skipd_send checks names and values.
 */
int skipd_request_set_int(skipd_request *request, const char *option, int64_t value, skipd_error **error);
int skipd_request_set_number(skipd_request *request, const char *option, double value, skipd_error **error);
int skipd_request_set_bool(skipd_request *request, const char *option, bool value, skipd_error **error);
int skipd_request_set_text(skipd_request *request, const char *option, const char *value, skipd_error **error);
/* The value as JSON text. */
int skipd_request_set_json(skipd_request *request, const char *option, const char *value, skipd_error **error);

/*
 * Sends a request and returns when it was taken. An error means that nothing runs on; after SKIPD_DISCONNECTED the daemon may have begun.
 * The client's timeout limits it. A deadline is kept by the daemon, from when the request came; five seconds after it this side gives up too,
 * with SKIPD_DEADLINE.
 * Freed by skipd_stream_free.
 */
int skipd_send(const skipd_client *client, const skipd_request *request, skipd_stream **stream, skipd_error **error);

/*
 * Waits for the next event, at most `timeout_ms` (negative: without end); *event becomes one of SKIPD_EVENT_….
 * An answer that ended early (deadline, shutdown, …) gives SKIPD_EVENT_FINISHED and its error at once: the counts are true, the text is
 * not whole. After the terminal event or an error every call gives SKIPD_EVENT_END.
 */
int skipd_stream_next(skipd_stream *stream, int timeout_ms, int *event, skipd_error **error);
/* The text of the last event, "" where it had none; whole UTF-8, and NUL closes it. `length` may be NULL. Valid until the next event. */
const char *skipd_stream_text(skipd_stream *stream, size_t *length);
/* The last event as JSON, with log-probabilities and calls; NULL before the first. Valid until the next event. */
const char *skipd_stream_event(skipd_stream *stream);
/* Why the answer ended: "stop", "length", "tool_calls", "deadline", …; NULL before the terminal event. Valid until the stream is freed. */
const char *skipd_stream_reason(skipd_stream *stream);
/* What the answer cost and what attention skipped, as JSON; NULL before the terminal event. Valid until the stream is freed. */
const char *skipd_stream_usage(skipd_stream *stream);
/* Reads to the end and gives the text from here on; freed by skipd_string_free. `length` may be NULL. On an error there is no text. */
int skipd_stream_rest(skipd_stream *stream, char **text, size_t *length, skipd_error **error);
/* Cancels the request, from any thread. Its reader gets what had come and then SKIPD_CANCELLED. */
void skipd_stream_cancel(const skipd_stream *stream);
/* Frees the stream; a request that still runs is cancelled. */
void skipd_stream_free(skipd_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
