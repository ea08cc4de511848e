// A vehicle's assistant over D-Bus, with nothing but sd-bus:  vehicle [BUS_ADDRESS]
//
// It waits until the daemon is ready, asks about warnings on the dashboard, and reads the answer from the file descriptor that the call
// returned. When the vehicle drives off in the middle of it, it closes the request (the Finished signal says so) and says something shorter,
// within a deadline.
#include <systemd/sd-bus.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>

namespace {

const char *const kName = "org.skipd.Skipd1";
const char *const kObject = "/org/skipd/Skipd1";
const char *const kManager = "org.skipd.Skipd1.Manager";
const char *const kRequest = "org.skipd.Skipd1.Request";

void check(int result, const char *what, const sd_bus_error *error = nullptr) {
    if (result >= 0) return;
    const std::string name = error && error->name ? error->name : "errno " + std::to_string(-result);
    throw std::runtime_error(std::string(what) + ": " + name + (error && error->message ? std::string(": ") + error->message : ""));
}

// Text as a JSON string.
std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        if (c == '\n') out += "\\n";
        else out += c;
    }
    return out + '"';
}

// The value of a string field in a line of the stream; empty where it is not there. The daemon escapes control characters, quotes and
// backslashes alone.
std::string field(const std::string &line, const std::string &name) {
    const auto key = line.find("\"" + name + "\":\"");
    std::string out;
    for (auto i = key == std::string::npos ? line.size() : key + name.size() + 4; i < line.size() && line[i] != '"'; i++) {
        if (line[i] != '\\' || i + 1 == line.size()) {
            out += line[i];
            continue;
        }
        switch (const char escaped = line[++i]) {
        case 'n': out += '\n'; break;
        case 't': out += '\t'; break;
        case 'u': out += static_cast<char>(std::stoi(line.substr(i + 1, 4), nullptr, 16)), i += 4; break;
        case 'b': case 'f': case 'r': break;
        default: out += escaped;
        }
    }
    return out;
}

struct Request {
    std::string path;
    int stream = -1;
    ~Request() {
        if (stream >= 0) close(stream);
    }
};

class Assistant {
public:
    explicit Assistant(const char *address) {
        check(sd_bus_new(&bus_), "a bus");
        const std::string own = address ? address : "";
        if (own.empty()) {
            sd_bus_unref(bus_);
            check(sd_bus_open_system(&bus_), "the system bus");
        } else {
            check(sd_bus_set_address(bus_, own.c_str()), "the address");
            check(sd_bus_set_bus_client(bus_, 1), "a client");
            check(sd_bus_negotiate_fds(bus_, 1), "file descriptors");
            check(sd_bus_start(bus_), "the bus");
        }
        check(sd_bus_match_signal(bus_, nullptr, kName, nullptr, kRequest, "Finished", on_finished, this), "a match");
    }
    ~Assistant() { sd_bus_flush_close_unref(bus_); }
    Assistant(const Assistant &) = delete;
    Assistant &operator=(const Assistant &) = delete;

    std::string property(const char *interface, const char *name) {
        sd_bus_error error = SD_BUS_ERROR_NULL;
        char *value = nullptr;
        check(sd_bus_get_property_string(bus_, kName, kObject, interface, name, &error, &value), name, &error);
        std::string out = value;
        free(value);
        return out;
    }

    // Begins a conversation; nothing comes before the daemon has taken it.
    Request ask(const std::string &text, std::uint32_t max_tokens, std::uint64_t deadline_ms, const char *priority) {
        const std::string messages = "[{\"role\":\"user\",\"content\":" + quoted(text) + "}]";
        sd_bus_error error = SD_BUS_ERROR_NULL;
        sd_bus_message *reply = nullptr;
        check(sd_bus_call_method(bus_, kName, kObject, kManager, "Chat", &error, &reply, "sa{sv}", messages.c_str(), 4, //
                                 "max_tokens", "u", max_tokens, "temperature", "d", 0.0,                                //
                                 "deadline_ms", "t", deadline_ms, "priority", "s", priority),
              "Chat", &error);
        const char *path = nullptr;
        int stream = -1;
        check(sd_bus_message_read(reply, "oh", &path, &stream), "the reply");
        Request request{path, dup(stream)};
        sd_bus_message_unref(reply);
        return request;
    }

    // Ends a request; its stream ends with the reason `cancelled`.
    void close_request(const Request &request) {
        sd_bus_error error = SD_BUS_ERROR_NULL;
        check(sd_bus_call_method(bus_, kName, request.path.c_str(), kRequest, "Close", &error, nullptr, ""), "Close", &error);
    }

    // What the Finished signal of a request said; waits for it up to five seconds.
    std::string finished(const Request &request) {
        for (int waits = 0; waits < 50 && !(finished_path_ == request.path); waits++) {
            while (sd_bus_process(bus_, nullptr) > 0) {}
            if (finished_path_ != request.path) sd_bus_wait(bus_, 100'000);
        }
        return finished_path_ == request.path ? finished_reason_ : "nothing";
    }

private:
    static int on_finished(sd_bus_message *message, void *self, sd_bus_error *) {
        const char *reason = nullptr;
        if (sd_bus_message_read(message, "s", &reason) >= 0) {
            static_cast<Assistant *>(self)->finished_path_ = sd_bus_message_get_path(message);
            static_cast<Assistant *>(self)->finished_reason_ = reason;
        }
        return 0;
    }

    sd_bus *bus_ = nullptr;
    std::string finished_path_, finished_reason_;
};

// Reads the stream line by line until its terminal event, whose reason it gives; `spoken` is called after each piece of text.
std::string speak(const Request &request, const std::function<void()> &spoken = [] {}) {
    FILE *stream = fdopen(dup(request.stream), "r");
    if (!stream) throw std::runtime_error("the stream cannot be read");
    char *line = nullptr;
    std::size_t size = 0;
    std::string reason = "broken off";
    while (getline(&line, &size, stream) > 0) {
        const std::string event = field(line, "event");
        if (event == "finished") {
            reason = field(line, "reason");
            break;
        }
        std::printf("%s", field(line, "text").c_str());
        std::fflush(stdout);
        spoken();
    }
    free(line);
    fclose(stream);
    return reason;
}

} // namespace

int main(int argc, char **argv) try {
    Assistant assistant(argc > 1 ? argv[1] : nullptr);
    for (int waits = 0; assistant.property(kManager, "State") != "ready"; waits++) {
        if (waits == 600) throw std::runtime_error("the daemon is not ready after a minute");
        usleep(100'000);
    }
    const std::string tier = assistant.property("org.skipd.Skipd1.Tables", "PrefillTier");
    std::printf("[vehicle] model %s, prefill table: %s\n", assistant.property(kManager, "Model").c_str(), tier.empty() ? "dense" : tier.c_str());

    // Parked: there is time for a long answer, until there is not.
    const auto parked = assistant.ask("The tyre pressure is low and the coolant is hot. Explain both warnings at length.", 400, 60'000, "interactive");
    bool moving = false;
    const std::string reason = speak(parked, [&] {
        if (moving) return;
        moving = true;
        assistant.close_request(parked);
    });
    std::printf("\n[vehicle] driving off: %s, signal: %s\n", reason.c_str(), assistant.finished(parked).c_str());

    // Driving: a few words, soon or never.
    const auto driving = assistant.ask("The tyre pressure is low. Say what to do in five words.", 16, 20'000, "interactive");
    const std::string short_reason = speak(driving);
    std::printf("\n[vehicle] said: %s\n", short_reason.c_str());
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "vehicle: %s\n", error.what());
    return 1;
}
