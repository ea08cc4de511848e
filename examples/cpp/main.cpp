// A question, its answer as it comes, a deadline, and a cancel from another thread:  ask [SOCKET | bus:ADDRESS]
#include "skipd.hpp"

#include <cstdio>
#include <thread>

using namespace std::chrono_literals;

int main(int argc, char **argv) try {
    const std::string where = argc > 1 ? argv[1] : "";
    const auto client = where.empty()                ? skipd::Client()
                        : where.rfind("bus:", 0) == 0 ? skipd::Client::bus(where.substr(4))
                                                      : skipd::Client(where);
    client.wait_ready(60s);

    auto question = skipd::Request::chat();
    question.system("Answer in one sentence.").user("What is the capital of France?").max_tokens(24).set("temperature", 0.0);
    auto answer = client.send(question);
    for (auto event = answer.next(); event.kind != SKIPD_EVENT_FINISHED; event = answer.next()) {
        std::printf("%.*s", static_cast<int>(event.text.size()), event.text.data());
        std::fflush(stdout);
    }
    std::printf("\n[%s] %s\n", answer.reason().c_str(), answer.usage().c_str());

    // A control loop waits only so long.
    try {
        client.send(skipd::Request::complete("Once upon a time").max_tokens(4000).set("ignore_eos", true).deadline(300ms)).rest();
        std::puts("deadline: kept");
    } catch (const skipd::Error &error) {
        std::printf("deadline: %s\n", error.name());
    }

    // Another thread knows better.
    auto story = client.send(skipd::Request::complete("Once upon a time").max_tokens(4000).set("ignore_eos", true));
    story.next();
    std::thread event([&] { std::this_thread::sleep_for(50ms), story.cancel(); });
    try {
        story.rest();
        std::puts("cancel: too late");
    } catch (const skipd::Error &error) {
        std::printf("cancel: %s\n", error.name());
    }
    event.join();
    return 0;
} catch (const skipd::Error &error) {
    std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
    return 1;
}
