// skipd.hpp against a real daemon:  client SOCKET. It says "asked", and waits for a line while somebody kills the daemon; the same client then
// serves again when another daemon is there. Built with the sanitizers by the end-to-end tests.
#include "skipd.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>

using namespace std::chrono_literals;

static void expect(bool holds, const char *what, int line) {
    if (holds) return;
    std::fprintf(stderr, "line %d: %s\n", line, what);
    std::exit(1);
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

// The error that work must end in.
static skipd::Error failing(const std::function<void()> &work) {
    try {
        work();
    } catch (const skipd::Error &error) {
        return error;
    }
    throw std::runtime_error("it did not fail");
}

static bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

// The text of a JSON field.
static std::string field(const std::string &json, const std::string &name) {
    const auto begin = json.find("\"" + name + "\":\"") + name.size() + 4;
    return json.substr(begin, json.find('"', begin) - begin);
}

static void control(const skipd::Client &client) {
    EXPECT(has(client.status(), "\"state\":\"ready\"") && has(client.activity(), "\"requests\":[]"));
    EXPECT(has(client.tiers(), "50%") && has(client.set_table("prefill", "50%"), "\"tier\":\"50%\""));
    EXPECT(has(client.tables(), "\"tier\":\"50%\"") && failing([&] { client.confirm(); }).code() == SKIPD_NOTHING_PENDING);
    client.set_table("prefill", "none");

    std::string rules;
    for (int i = 0; i < 60; i++) rules += "Rule " + std::to_string(i) + ": stop before the line. ";
    const std::string pinned = client.pin_prefix("{\"name\": \"rules\", \"prompt\": \"" + rules + "\"}");
    EXPECT(has(pinned, "\"name\":\"rules\"") && !has(pinned, "\"tokens\":0"));
    EXPECT(has(client.prefixes(), "\"name\":\"rules\""));
    auto answer = client.send(skipd::Request::complete(rules + "The first rule").max_tokens(2));
    answer.rest();
    EXPECT(has(answer.usage(), "\"reused_tokens\":") && !has(answer.usage(), "\"reused_tokens\":0"));
    EXPECT(has(client.drop_prefix("rules"), "\"hits\":1") && !has(client.prefixes(), "rules"));
    EXPECT(failing([&] { client.drop_prefix("rules"); }).code() == SKIPD_NOT_FOUND);
    EXPECT(failing([&] { client.pin_prefix("{\"prompt\": \"a\", \"uid\": 3}"); }).param() == "uid");

    EXPECT(has(client.update(), "\"probation\":null") && failing([&] { client.roll_back_update(); }).code() == SKIPD_NOTHING_PENDING);
    EXPECT(failing([&] { client.apply_update("/nonexistent/bundle.tar"); }).code() == SKIPD_INTERNAL);
    EXPECT(failing([&] { client.apply_update_archive({'n', 'o'}); }).code() == SKIPD_TABLE_REFUSED);

    // There is no device whose kernels could be tried: the job says so.
    const std::string id = field(client.start_job("qualify"), "id");
    while (has(client.job(id), "\"running\"")) usleep(10000);
    EXPECT(has(client.job(id), "\"state\":\"failed\"") && has(client.jobs(), "\"id\":\"" + id + "\""));
    client.cancel_job(id);
    EXPECT(failing([&] { client.start_job("nonsense"); }).param() == "kind" && failing([&] { client.job("no/job"); }).code() == SKIPD_NOT_FOUND);
}

// Somebody who listens and never answers.
static void silence() {
    std::string folder = std::filesystem::temp_directory_path() / "skipd-XXXXXX";
    EXPECT(mkdtemp(folder.data()));
    const std::string path = folder + "/s";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT(bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0 && listen(listener, 8) == 0);
    skipd::Client client(path);
    client.timeout(50ms);
    const auto began = std::chrono::steady_clock::now();
    for (const auto &work : std::vector<std::function<void()>>{[&] { client.send(skipd::Request::complete("a")); }, [&] { client.status(); },
                                                               [&] { client.prefixes(); }, [&] { client.wait_ready(50ms); },
                                                               [&] { skipd::Client::wait(path, 50ms); }}) {
        const auto error = failing(work);
        EXPECT(error.code() == SKIPD_UNREACHABLE && error.away());
    }
    EXPECT(std::chrono::steady_clock::now() - began < 10s);
    close(listener);
    std::filesystem::remove_all(folder);
}

int main(int argc, char **argv) try {
    EXPECT(argc == 2);
    silence();
    auto client = skipd::Client::wait(argv[1], 60s);
    client.timeout(20s);
    control(client);
    auto story = client.send(skipd::Request::complete("Once upon a time").max_tokens(4000).set("ignore_eos", true));
    EXPECT(story.next().kind == SKIPD_EVENT_TEXT);
    std::cout << "asked" << std::endl;
    std::string line;
    std::getline(std::cin, line);
    const auto cut = failing([&] { story.rest(); });
    EXPECT(cut.code() == SKIPD_DISCONNECTED && cut.away() && failing([&] { client.status(); }).away());
    std::cout << "cut" << std::endl;
    client.wait_ready(60s);
    EXPECT(client.send(skipd::Request::complete("One, two,").max_tokens(4)).rest().size() > 0);
    std::cout << "all checks passed" << std::endl;
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
