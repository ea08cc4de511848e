/* Everything of skipd.h against a real daemon:  client SOCKET BUS_ADDRESS. Built with the sanitizers by the end-to-end tests. */
#include "skipd.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect(int holds, const char *what, int line) {
    if (!holds) {
        fprintf(stderr, "line %d: %s\n", line, what);
        exit(1);
    }
}
#define EXPECT(condition) expect(!!(condition), #condition, __LINE__)

/* A call that must succeed, with `error` behind its arguments. */
#define OK(call) \
    do { \
        skipd_error *error = NULL; \
        int code = (call); \
        if (code) fprintf(stderr, "%s: %s\n", skipd_code_name(code), skipd_error_message(error)); \
        EXPECT(code == SKIPD_OK && error == NULL); \
    } while (0)

/* A call that must fail with a code at a parameter (NULL: none). */
#define FAILS(call, expected, parameter) \
    do { \
        skipd_error *error = NULL; \
        int code = (call); \
        EXPECT(code == (expected) && error && skipd_error_code(error) == code && strlen(skipd_error_message(error)) > 0); \
        const char *found = skipd_error_param(error), *wanted = (parameter); \
        EXPECT(wanted ? found && !strcmp(found, wanted) : !found); \
        EXPECT(skipd_error_details(error)[0] == '{'); \
        skipd_error_free(error); \
    } while (0)

static skipd_stream *begin(skipd_client *client, const char *prompt, int tokens, int64_t deadline_ms) {
    skipd_request *request = NULL;
    skipd_stream *stream = NULL;
    OK(skipd_complete(prompt, &request, &error));
    OK(skipd_request_set_int(request, "max_tokens", tokens, &error));
    OK(skipd_request_set_number(request, "temperature", 0, &error));
    OK(skipd_request_set_bool(request, "ignore_eos", true, &error));
    OK(skipd_request_set_text(request, "priority", "interactive", &error));
    OK(skipd_request_set_json(request, "stop", "[\"no such text\"]", &error));
    if (deadline_ms) OK(skipd_request_set_int(request, "deadline_ms", deadline_ms, &error));
    OK(skipd_send(client, request, &stream, &error));
    skipd_request_free(request);
    return stream;
}

static void *cancel_soon(void *stream) {
    usleep(50000);
    skipd_stream_cancel(stream);
    return NULL;
}

static void streams(skipd_client *client) {
    int event = -1, texts = 0;
    size_t length = 0, whole = 0;
    skipd_stream *stream = begin(client, "One, two, three,", 8, 0);
    EXPECT(!skipd_stream_event(stream) && !skipd_stream_reason(stream) && !skipd_stream_usage(stream));
    for (;;) {
        OK(skipd_stream_next(stream, 60000, &event, &error));
        if (event != SKIPD_EVENT_TEXT) break;
        EXPECT(strlen(skipd_stream_text(stream, &length)) == length && strstr(skipd_stream_event(stream), "\"text\""));
        whole += length;
        texts++;
    }
    EXPECT(event == SKIPD_EVENT_FINISHED && texts > 1 && whole > 8);
    EXPECT(!strcmp(skipd_stream_reason(stream), "length") && strstr(skipd_stream_usage(stream), "\"completion_tokens\":8"));
    OK(skipd_stream_next(stream, -1, &event, &error));
    EXPECT(event == SKIPD_EVENT_END && !strcmp(skipd_stream_text(stream, NULL), ""));
    skipd_stream_free(stream);

    char *text = NULL;
    stream = begin(client, "One, two, three,", 8, 0);
    OK(skipd_stream_rest(stream, &text, &length, &error));
    EXPECT(length == whole && strlen(text) == whole);
    skipd_string_free(text);
    skipd_stream_free(stream);

    /* An early end has its reason, true counts and its error. */
    stream = begin(client, "Once upon a time", 4000, 300);
    do {
        skipd_error *error = NULL;
        int code = skipd_stream_next(stream, -1, &event, &error);
        EXPECT(code == (event == SKIPD_EVENT_FINISHED ? SKIPD_DEADLINE : SKIPD_OK));
        skipd_error_free(error);
    } while (event == SKIPD_EVENT_TEXT);
    EXPECT(!strcmp(skipd_stream_reason(stream), "deadline") && strstr(skipd_stream_usage(stream), "completion_tokens"));
    skipd_stream_free(stream);

    /* Cancelled by another thread; freed while it runs. */
    pthread_t thread;
    stream = begin(client, "Once upon a time", 4000, 0);
    EXPECT(!pthread_create(&thread, NULL, cancel_soon, stream));
    FAILS(skipd_stream_rest(stream, &text, NULL, &error), SKIPD_CANCELLED, NULL);
    EXPECT(text == NULL);
    pthread_join(thread, NULL);
    OK(skipd_stream_next(stream, -1, &event, &error));
    EXPECT(event == SKIPD_EVENT_END);
    skipd_stream_free(stream);
    skipd_stream_free(begin(client, "Once upon a time", 4000, 0));
}

static void chats(skipd_client *client) {
    skipd_request *request = NULL;
    skipd_stream *stream = NULL;
    char *text = NULL;
    OK(skipd_chat(&request, &error));
    FAILS(skipd_send(client, request, &stream, &error), SKIPD_INVALID_REQUEST, "messages");
    EXPECT(stream == NULL);
    OK(skipd_request_message(request, "user", "What is the capital of France?", &error));
    OK(skipd_request_set_int(request, "max_tokens", 24, &error));
    OK(skipd_request_set_int(request, "temperature", 0, &error));
    OK(skipd_send(client, request, &stream, &error));
    OK(skipd_stream_rest(stream, &text, NULL, &error));
    EXPECT(strstr(text, "Paris"));
    skipd_stream_free(stream);
    /* The same again, and on. */
    OK(skipd_request_message(request, "assistant", text, &error));
    OK(skipd_request_message_json(request, "{\"role\": \"user\", \"content\": \"Thanks.\"}", &error));
    OK(skipd_send(client, request, &stream, &error));
    skipd_stream_free(stream);
    skipd_string_free(text);
    OK(skipd_request_set_int(request, "no_such_option", 1, &error));
    FAILS(skipd_send(client, request, &stream, &error), SKIPD_INVALID_REQUEST, "no_such_option");
    skipd_request_free(request);

    uint32_t *tokens = NULL;
    size_t count = 0;
    OK(skipd_tokenize(client, "The capital of France is", &tokens, &count, &error));
    EXPECT(count == 5);
    OK(skipd_complete_tokens(tokens, count, &request, &error));
    skipd_tokens_free(tokens, count);
    FAILS(skipd_request_message(request, "user", "x", &error), SKIPD_INVALID_REQUEST, "request");
    OK(skipd_request_set_int(request, "max_tokens", 9000, &error));
    FAILS(skipd_send(client, request, &stream, &error), SKIPD_CONTEXT_OVERFLOW, NULL);
    skipd_request_free(request);
}

static void control(skipd_client *client) {
    char *json = NULL;
    OK(skipd_status(client, &json, &error));
    EXPECT(strstr(json, "\"state\":\"ready\""));
    skipd_string_free(json);
    OK(skipd_tiers(client, &json, &error));
    EXPECT(strstr(json, "50%"));
    skipd_string_free(json);
    OK(skipd_set_table(client, "prefill", "50%", "{\"confirm_within\": 60}", &json, &error));
    EXPECT(strstr(json, "\"tier\":\"50%\""));
    skipd_string_free(json);
    OK(skipd_confirm(client, NULL, &error));
    OK(skipd_set_table(client, "prefill", "none", NULL, NULL, &error));
    OK(skipd_tables(client, &json, &error));
    EXPECT(strstr(json, "\"decode\""));
    skipd_string_free(json);
    OK(skipd_reload(client, NULL, &error));
    FAILS(skipd_set_table(client, "prefill", "99%", NULL, &json, &error), SKIPD_TABLE_REFUSED, "selector");
    EXPECT(json == NULL);
    FAILS(skipd_set_table(client, "sideways", "none", NULL, NULL, &error), SKIPD_INVALID_REQUEST, "phase");
    FAILS(skipd_revert(client, NULL, &error), SKIPD_NOTHING_PENDING, NULL);
    FAILS(skipd_tables(client, NULL, &error), SKIPD_INVALID_REQUEST, "json");
}

/* No update was ever taken, and what is none is refused by name. */
static void updates(skipd_client *client, int bus) {
    char *json = NULL;
    OK(skipd_update(client, &json, &error));
    EXPECT(strstr(json, "\"active\":null") && strstr(json, "\"floor\":0"));
    skipd_string_free(json);
    FAILS(skipd_apply_update_archive(client, (const uint8_t *)"no archive", 10, &json, &error), SKIPD_TABLE_REFUSED, NULL);
    EXPECT(json == NULL);
    FAILS(skipd_apply_update_archive(client, NULL, 3, NULL, &error), SKIPD_INVALID_REQUEST, "archive");
    FAILS(skipd_apply_update(client, "/nonexistent/bundle.tar", true, NULL, &error), bus ? SKIPD_UNSUPPORTED : SKIPD_INTERNAL, NULL);
    FAILS(skipd_apply_update(client, NULL, false, NULL, &error), SKIPD_INVALID_REQUEST, "path");
    FAILS(skipd_roll_back_update(client, &json, &error), SKIPD_NOTHING_PENDING, NULL);
    FAILS(skipd_update(client, NULL, &error), SKIPD_INVALID_REQUEST, "json");
}

static void work(skipd_client *client, int bus) {
    char *json = NULL, prefix[8192] = "{\"name\": \"rules\", \"prompt\": \"", id[32] = "";
    for (int i = 0; i < 200; i++) strcat(prefix, "Stop before the line. ");
    strcat(prefix, "\"}");
    OK(skipd_pin_prefix(client, prefix, &json, &error));
    EXPECT(strstr(json, "\"name\":\"rules\"") && !strstr(json, "\"tokens\":0"));
    skipd_string_free(json);
    OK(skipd_prefixes(client, &json, &error));
    EXPECT(strstr(json, "\"name\":\"rules\""));
    skipd_string_free(json);
    OK(skipd_drop_prefix(client, "rules", NULL, &error));
    FAILS(skipd_drop_prefix(client, "rules", &json, &error), SKIPD_NOT_FOUND, bus ? NULL : "name");
    EXPECT(json == NULL);
    FAILS(skipd_pin_prefix(client, "{\"prompt\": 1}", NULL, &error), SKIPD_INVALID_REQUEST, "prompt");
    FAILS(skipd_pin_prefix(client, "{", NULL, &error), SKIPD_INVALID_REQUEST, NULL);

    OK(skipd_activity(client, &json, &error));
    EXPECT(strstr(json, "\"requests\":["));
    skipd_string_free(json);

    /* There is no device whose kernels could be tried: the job says so. */
    OK(skipd_start_job(client, "qualify", "{}", &json, &error));
    EXPECT(sscanf(strstr(json, "\"id\":"), "\"id\":\"%31[0-9]", id) == 1);
    skipd_string_free(json);
    OK(skipd_cancel_job(client, id, &error));
    for (int ended = 0; !ended; usleep(10000)) {
        OK(skipd_job(client, id, &json, &error));
        ended = !strstr(json, "\"state\":\"running\"");
        skipd_string_free(json);
    }
    OK(skipd_jobs(client, &json, &error));
    EXPECT(strstr(json, "\"kind\":\"qualify\""));
    skipd_string_free(json);
    FAILS(skipd_job(client, "no/job", &json, &error), SKIPD_NOT_FOUND, "id");
    FAILS(skipd_start_job(client, "qualify", "[]", NULL, &error), SKIPD_INVALID_REQUEST, "options");
    EXPECT(skipd_start_job(client, "bench", NULL, NULL, NULL) == SKIPD_UNSUPPORTED);
}

int main(int argc, char **argv) {
    skipd_client *client = NULL;
    EXPECT(argc == 3 && strlen(skipd_version()) > 0);
    FAILS(skipd_connect("/nonexistent/skipd.sock", &client, &error), SKIPD_UNREACHABLE, NULL);
    EXPECT(client == NULL && skipd_connect("\xff", &client, NULL) == SKIPD_INVALID_REQUEST);
    for (int bus = 0; bus < 2; bus++) {
        if (bus) OK(skipd_connect_bus(argv[2], &client, &error));
        else OK(skipd_connect(argv[1], &client, &error));
        OK(skipd_wait_ready(client, 60000, &error));
        streams(client);
        chats(client);
        control(client);
        OK(skipd_client_set_timeout(client, 20000, &error));
        work(client, bus);
        updates(client, bus);
        /* A stream outlives its client. */
        skipd_stream *last = begin(client, "One, two, three,", 3, 0);
        skipd_client_free(client);
        char *text = NULL;
        OK(skipd_stream_rest(last, &text, NULL, &error));
        skipd_string_free(text);
        skipd_stream_free(last);
    }
    puts("all checks passed");
    return 0;
}
