#include <regex>
#include <set>

#include "server/http/embedded_files.h"
#include "tests/server/http_fixture.h"
#include "tests/support/source_dir.h"

namespace lorad::server::http_console_test {
namespace {

// What a text names by a pattern with one group.
std::set<std::string> named(std::string_view text, const char* pattern) {
    std::set<std::string> out;
    std::string copy(text);
    std::regex regex(pattern);
    for (std::sregex_iterator it(copy.begin(), copy.end(), regex), end; it != end; ++it) out.insert((*it)[1]);
    return out;
}

std::string_view file_of_console(std::string_view name) {
    for (const EmbeddedFile& file : console_files()) {
        if (file.name == name) return file.content;
    }
    return {};
}

TEST_F(HttpTest, ConsoleFilesComeWithTypeTagAndStrictPolicy) {
    gate = nullptr;  // also while the model is being loaded
    ASSERT_GT(console_files().size(), 5u);
    for (const EmbeddedFile& file : console_files()) {
        auto answer = client().Get("/console/" + std::string(file.name));
        ASSERT_TRUE(bool(answer));
        EXPECT_EQ(answer->status, 200) << file.name;
        EXPECT_EQ(answer->body, file.content) << file.name;
        EXPECT_EQ(answer->body, file_text((lorad::testing::source_dir() / "server/console" / file.name).string()));
        EXPECT_EQ(answer->get_header_value("Content-Type"), file.content_type);
        EXPECT_EQ(answer->get_header_value("ETag"), file.etag);
        EXPECT_EQ(answer->get_header_value("X-Content-Type-Options"), "nosniff");
        std::string policy = answer->get_header_value("Content-Security-Policy");
        EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
        EXPECT_EQ(policy.find("unsafe"), std::string::npos);
        auto known = client().Get("/console/" + std::string(file.name),
                                  httplib::Headers{{"If-None-Match", std::string(file.etag)}});
        EXPECT_EQ(known->status, 304) << file.name;
        EXPECT_EQ(known->body, "");
        auto other =
            client().Get("/console/" + std::string(file.name), httplib::Headers{{"If-None-Match", "\"0123\""}});
        EXPECT_EQ(other->status, 200) << file.name;
    }
    auto page = client().Get("/console");
    EXPECT_EQ(page->body, file_of_console("index.html"));
    EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
    EXPECT_EQ(client().Get("/console/")->get_header_value("Location"), "../console");
    EXPECT_EQ(get("/console/nothing.js").code, "not_found");
    EXPECT_EQ(get("/console/..%2fmain.cpp").code, "not_found");
}

// The policy would block what is inline; a file or an element that is missing would show only in a browser.
TEST(Console, PageNamesOnlyWhatIsThereAndNothingElsewhere) {
    const std::string_view page = file_of_console("index.html");
    ASSERT_FALSE(page.empty());
    EXPECT_TRUE(named(page, R"(<script(?![^>]*\bsrc=)([^>]*)>)").empty()) << "an inline script";
    EXPECT_TRUE(named(page, R"((<style|\sstyle=|\son\w+=))").empty()) << "inline style or handler";
    for (const std::string& path : named(page, R"((?:src|href)="([^#"][^"]*)\")")) {
        ASSERT_TRUE(path.starts_with("console/")) << path;
        EXPECT_FALSE(file_of_console(path.substr(8)).empty()) << path;
    }
    const std::set<std::string> ids = named(page, R"re(\bid="([^"]+)")re");
    std::set<std::string> imported{"main.js"}, scripts;
    for (const EmbeddedFile& file : console_files()) {
        EXPECT_TRUE(named(file.content, R"((https?://(?!www\.w3\.org/2000/svg)[^\s"'`]+))").empty())
            << file.name << " names another host";
        if (!file.name.ends_with(".js")) continue;
        scripts.emplace(file.name);
        for (const std::string& name : named(file.content, R"re(from "\./([^"]+)")re")) {
            EXPECT_FALSE(file_of_console(name).empty()) << file.name << " imports " << name;
            imported.insert(name);
        }
        for (const std::string& id : named(file.content, R"re(\$\("([^"]+)"\))re"))
            EXPECT_TRUE(ids.contains(id)) << file.name << " looks for " << id;
        EXPECT_TRUE(named(file.content, R"(\b(innerHTML|outerHTML|insertAdjacentHTML|eval)\b)").empty())
            << file.name << " makes markup or code of data";
    }
    EXPECT_EQ(scripts, imported) << "a script that nobody imports";
}

}  // namespace
}  // namespace lorad::server::http_console_test
