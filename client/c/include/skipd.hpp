// skipd.h for C++17: handles that free themselves, and errors as exceptions. Header only; needs the same library.
#ifndef SKIPD_HPP
#define SKIPD_HPP

#include "skipd.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace skipd {

// What went wrong; what() is for a person.
class Error : public std::runtime_error {
public:
    Error(int code, const skipd_error *error)
        : std::runtime_error(skipd_error_message(error)), code_(code), details_(skipd_error_details(error)) {
        if (const char *param = skipd_error_param(error)) param_ = param;
    }
    // For an argument that this header refuses itself.
    Error(int code, const std::string &param, const std::string &message)
        : std::runtime_error(param + ": " + message), code_(code), param_(param), details_("{}") {}
    // One of SKIPD_…
    int code() const noexcept { return code_; }
    // Its name on the socket.
    const char *name() const noexcept { return skipd_code_name(code_); }
    // The daemon is away: Client::wait_ready, and send again.
    bool away() const noexcept { return skipd_code_away(code_); }
    // The field at fault; empty where there is none.
    const std::string &param() const noexcept { return param_; }
    // Numbers for a program, a JSON object.
    const std::string &details() const noexcept { return details_; }

private:
    int code_;
    std::string param_, details_;
};

namespace detail {

struct Free {
    void operator()(skipd_error *it) const noexcept { skipd_error_free(it); }
    void operator()(skipd_client *it) const noexcept { skipd_client_free(it); }
    void operator()(skipd_request *it) const noexcept { skipd_request_free(it); }
    void operator()(skipd_stream *it) const noexcept { skipd_stream_free(it); }
    void operator()(char *it) const noexcept { skipd_string_free(it); }
};
template <class T> using Owned = std::unique_ptr<T, Free>;

inline void check(int code, skipd_error *error) {
    Owned<skipd_error> owned(error);
    if (code != SKIPD_OK) throw Error(code, error);
}

// Text for C, which would end at a NUL: refused, never cut.
inline const char *c_text(const char *argument, const std::string &text) {
    if (text.find('\0') != std::string::npos) throw Error(SKIPD_INVALID_REQUEST, argument, "holds a NUL, which C text cannot");
    return text.c_str();
}

// Milliseconds for C: a time that has passed is 0, and one that does not fit the longest that does.
template <class Number> Number milliseconds(std::chrono::milliseconds time) {
    constexpr auto most = static_cast<long long>(std::numeric_limits<Number>::max());
    return static_cast<Number>(std::clamp<long long>(time.count(), 0, most));
}

// Calls `function` with a place for its error behind the arguments; throws what it put there.
template <class Function, class... Arguments> void call(Function function, Arguments... arguments) {
    skipd_error *error = nullptr;
    const int code = function(arguments..., &error);
    check(code, error);
}

// The same for a function that gives JSON.
template <class Function, class... Arguments> std::string json(Function function, Arguments... arguments) {
    char *text = nullptr;
    call(function, arguments..., &text);
    return Owned<char>(text).get();
}

} // namespace detail

// One running request. Destroying it cancels what still runs.
class Stream {
public:
    struct Event {
        int kind = SKIPD_EVENT_NONE;
        // Of SKIPD_EVENT_TEXT; valid until the next event.
        std::string_view text;
    };

    explicit Stream(skipd_stream *handle) : handle_(handle) {}

    // Waits for the next event, by default without end; a timeout of 0 or less only looks. Throws where the answer ended early or broke off.
    Event next(std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
        Event event;
        detail::call(skipd_stream_next, handle_.get(), timeout ? detail::milliseconds<int>(*timeout) : -1, &event.kind);
        std::size_t length = 0;
        const char *text = skipd_stream_text(handle_.get(), &length);
        event.text = std::string_view(text, length);
        return event;
    }

    // All text from here to the end.
    std::string rest() {
        char *text = nullptr;
        std::size_t length = 0;
        detail::call(skipd_stream_rest, handle_.get(), &text, &length);
        return std::string(detail::Owned<char>(text).get(), length);
    }

    // The last event as JSON; empty before the first.
    std::string event() const { return text(skipd_stream_event(handle_.get())); }
    // Why the answer ended, and what it cost as JSON; empty before the end.
    std::string reason() const { return text(skipd_stream_reason(handle_.get())); }
    std::string usage() const { return text(skipd_stream_usage(handle_.get())); }

    // From any thread.
    void cancel() const noexcept { skipd_stream_cancel(handle_.get()); }

private:
    static std::string text(const char *text) { return text ? text : ""; }
    detail::Owned<skipd_stream> handle_;
};

// A request under construction; may be sent again and again.
class Request {
public:
    static Request chat() {
        skipd_request *handle = nullptr;
        detail::call(skipd_chat, &handle);
        return Request(handle);
    }
    static Request complete(const std::string &prompt) {
        skipd_request *handle = nullptr;
        detail::call(skipd_complete, detail::c_text("prompt", prompt), &handle);
        return Request(handle);
    }
    static Request complete(const std::vector<std::uint32_t> &tokens) {
        skipd_request *handle = nullptr;
        detail::call(skipd_complete_tokens, tokens.data(), tokens.size(), &handle);
        return Request(handle);
    }

    Request &message(const std::string &role, const std::string &text) {
        detail::call(skipd_request_message, handle_.get(), detail::c_text("role", role), detail::c_text("text", text));
        return *this;
    }
    Request &user(const std::string &text) { return message("user", text); }
    Request &system(const std::string &text) { return message("system", text); }

    // An option: a number, a flag or a text.
    template <class T> Request &set(const std::string &option, const T &value) {
        if constexpr (std::is_same_v<T, bool>) {
            detail::call(skipd_request_set_bool, handle_.get(), detail::c_text("option", option), value);
        } else if constexpr (std::is_integral_v<T>) {
            if constexpr (std::is_unsigned_v<T> && sizeof(T) == sizeof(std::int64_t)) {
                if (value > static_cast<T>(std::numeric_limits<std::int64_t>::max())) return set_json(option, std::to_string(value));
            }
            detail::call(skipd_request_set_int, handle_.get(), detail::c_text("option", option), static_cast<std::int64_t>(value));
        } else if constexpr (std::is_floating_point_v<T>) {
            detail::call(skipd_request_set_number, handle_.get(), detail::c_text("option", option), static_cast<double>(value));
        } else {
            detail::call(skipd_request_set_text, handle_.get(), detail::c_text("option", option), detail::c_text("value", std::string(value)));
        }
        return *this;
    }
    // An option as JSON text: "stop", "response_format", "tools", …
    Request &set_json(const std::string &option, const std::string &value) {
        detail::call(skipd_request_set_json, handle_.get(), detail::c_text("option", option), detail::c_text("value", value));
        return *this;
    }
    Request &max_tokens(int tokens) { return set("max_tokens", tokens); }
    Request &deadline(std::chrono::milliseconds after) { return set("deadline_ms", after.count()); }

    const skipd_request *handle() const noexcept { return handle_.get(); }

private:
    explicit Request(skipd_request *handle) : handle_(handle) {}
    detail::Owned<skipd_request> handle_;
};

// A connection to the daemon; may be used by several threads, and stays good when the daemon is started again.
class Client {
public:
    // Finds the socket.
    Client() : handle_(connect(nullptr)) {}
    explicit Client(const std::string &socket) : handle_(connect(detail::c_text("socket", socket))) {}
    // "system", "session", or an address.
    static Client bus(const std::string &address) {
        skipd_client *handle = nullptr;
        detail::call(skipd_connect_bus, detail::c_text("address", address), &handle);
        return Client(handle);
    }

    // For a daemon that may not be there yet: waits until it is ready.
    static Client wait(std::chrono::milliseconds timeout) { return Client(connect_wait(nullptr, timeout)); }
    static Client wait(const std::string &socket, std::chrono::milliseconds timeout) {
        return Client(connect_wait(detail::c_text("socket", socket), timeout));
    }

    // How long calls wait for a daemon that says nothing; std::nullopt is without end. Not while other threads use the client.
    Client &timeout(std::optional<std::chrono::milliseconds> limit) {
        detail::call(skipd_client_set_timeout, handle_.get(), limit ? detail::milliseconds<int>(*limit) : -1);
        return *this;
    }

    Stream send(const Request &request) const {
        skipd_stream *stream = nullptr;
        detail::call(skipd_send, handle_.get(), request.handle(), &stream);
        return Stream(stream);
    }

    void wait_ready(std::chrono::milliseconds timeout) const {
        detail::call(skipd_wait_ready, handle_.get(), detail::milliseconds<std::uint32_t>(timeout));
    }
    // As JSON.
    std::string status() const { return detail::json(skipd_status, handle_.get()); }
    std::string tables() const { return detail::json(skipd_tables, handle_.get()); }
    std::string tiers() const { return detail::json(skipd_tiers, handle_.get()); }
    std::string set_table(const std::string &phase, const std::string &selector, const std::string &options = "{}") const {
        return detail::json(skipd_set_table, handle_.get(), detail::c_text("phase", phase), detail::c_text("selector", selector), detail::c_text("options", options));
    }
    std::string confirm() const { return detail::json(skipd_confirm, handle_.get()); }
    std::string revert() const { return detail::json(skipd_revert, handle_.get()); }
    std::string reload() const { return detail::json(skipd_reload, handle_.get()); }

    std::string prefixes() const { return detail::json(skipd_prefixes, handle_.get()); }
    std::string pin_prefix(const std::string &prefix) const { return detail::json(skipd_pin_prefix, handle_.get(), detail::c_text("prefix", prefix)); }
    std::string drop_prefix(const std::string &name) const { return detail::json(skipd_drop_prefix, handle_.get(), detail::c_text("name", name)); }
    std::string activity() const { return detail::json(skipd_activity, handle_.get()); }
    std::string jobs() const { return detail::json(skipd_jobs, handle_.get()); }
    std::string job(const std::string &id) const { return detail::json(skipd_job, handle_.get(), detail::c_text("id", id)); }
    std::string start_job(const std::string &kind, const std::string &options = "{}") const {
        return detail::json(skipd_start_job, handle_.get(), detail::c_text("kind", kind), detail::c_text("options", options));
    }
    void cancel_job(const std::string &id) const { detail::call(skipd_cancel_job, handle_.get(), detail::c_text("id", id)); }
    // Updates of tables; a path is one that the daemon can read, and an archive its bytes.
    std::string update() const { return detail::json(skipd_update, handle_.get()); }
    std::string apply_update(const std::string &path, bool relax_expiry = false) const {
        return detail::json(skipd_apply_update, handle_.get(), detail::c_text("path", path), relax_expiry);
    }
    std::string apply_update_archive(const std::vector<std::uint8_t> &archive) const {
        return detail::json(skipd_apply_update_archive, handle_.get(), archive.data(), archive.size());
    }
    std::string roll_back_update() const { return detail::json(skipd_roll_back_update, handle_.get()); }
    // Returns when nothing runs; nothing new is taken.
    void drain() const { detail::call(skipd_drain, handle_.get()); }

    std::vector<std::uint32_t> tokenize(const std::string &text) const {
        std::uint32_t *tokens = nullptr;
        std::size_t count = 0;
        detail::call(skipd_tokenize, handle_.get(), detail::c_text("text", text), &tokens, &count);
        const auto free = [count](std::uint32_t *it) { skipd_tokens_free(it, count); };
        const std::unique_ptr<std::uint32_t, decltype(free)> owned(tokens, free);
        return std::vector<std::uint32_t>(tokens, tokens + count);
    }

private:
    static skipd_client *connect(const char *socket) {
        skipd_client *handle = nullptr;
        detail::call(skipd_connect, socket, &handle);
        return handle;
    }
    static skipd_client *connect_wait(const char *socket, std::chrono::milliseconds timeout) {
        skipd_client *handle = nullptr;
        detail::call(skipd_connect_wait, socket, detail::milliseconds<std::uint32_t>(timeout), &handle);
        return handle;
    }
    explicit Client(skipd_client *handle) : handle_(handle) {}
    detail::Owned<skipd_client> handle_;
};

} // namespace skipd

#endif
