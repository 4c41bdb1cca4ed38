#include "server/config.h"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace lorad::server::config_test {
namespace {

ConfigSource flag(const std::string& name, std::vector<std::string> texts) {
    return {{{name, std::move(texts), "--" + name}}};
}

Result<ConfigSource> from_file_of(const std::string& text) {
    const lorad::testing::TempDir folder;
    const std::string path = folder.path() / "lorad_config_test.toml";
    std::ofstream(path) << text;
    return config_from_file(path);
}

TEST(Config, LaterSourcesWin) {
    auto config = build_config({flag("port", {"1000"}), flag("port", {"2000"})});
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(config->port, 2000u);
}

TEST(Config, FileEnvironmentAndFlagsWinInThisOrder) {
    auto file = from_file_of("port = 1\nhost = \"a\"\nmax_queue = 7\n");
    ASSERT_TRUE(file.ok()) << file.error().message;
    setenv("LORAD_PORT", "2", 1);
    setenv("LORAD_HOST", "b", 1);
    auto environment = config_from_environment();
    unsetenv("LORAD_PORT");
    unsetenv("LORAD_HOST");
    ASSERT_TRUE(environment.ok());
    auto config = build_config({*file, *environment, flag("port", {"3"})});
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->port, 3u);
    EXPECT_EQ(config->host, "b");
    EXPECT_EQ(config->max_queue, 7u);
    EXPECT_EQ(config->max_num_seqs, Config().max_num_seqs);
}

TEST(Config, ErrorsNameTheSourceTheRangeAndTheValue) {
    auto by_flag = build_config({flag("port", {"70000"})});
    ASSERT_FALSE(by_flag.ok());
    EXPECT_EQ(by_flag.error().message, "--port: expected a whole number from 0 to 65535, found \"70000\"");
    auto file = from_file_of("\nmax_num_seqs = \"many\"\n");
    ASSERT_TRUE(file.ok());
    auto by_file = build_config({*file});
    ASSERT_FALSE(by_file.ok());
    EXPECT_NE(by_file.error().message.find("lorad_config_test.toml:2: max_num_seqs"), std::string::npos)
        << by_file.error().message;
}

TEST(Config, UnknownKeysAndBrokenFilesAreErrorsWithTheirPlace) {
    auto unknown = from_file_of("prot = 1\n");
    ASSERT_FALSE(unknown.ok());
    EXPECT_NE(unknown.error().message.find(":1: prot: no such setting"), std::string::npos) << unknown.error().message;
    auto broken = from_file_of("port = = 1\n");
    ASSERT_FALSE(broken.ok());
    EXPECT_NE(broken.error().message.find(":1:"), std::string::npos) << broken.error().message;
    EXPECT_FALSE(config_from_file("/nonexistent/lorad.toml").ok());
}

TEST(Config, EverythingThatIsWrongIsTold) {
    const lorad::testing::TempDir folder;
    const std::string path = folder.path() / "many.toml";
    std::ofstream(path) << "prot = 1\nport = 70000\nhost = \"\"\nmax_num_seqs = 3\nlora = \"x\"\nlora_x = 1\nmax_queue "
                           "= []\nmax_num_batched_tokens = 2\n";
    std::vector<Error> errors;
    auto file = config_from_file(path, &errors);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(errors.size(), 3u) << "unknown keys and a list where there is none";
    const Config config = build_config({*file, flag("tls-cert", {"x"}), flag("log-level", {"loud"})}, errors);
    std::string all;
    for (const Error& error : errors) all += error.message + "\n";
    for (const char* part :
         {"prot: no such setting; did you mean port?", "lora_x: no such setting", "max_queue: expected a single value",
          "port: expected a whole number", "host: expected an address", "lora: expected NAME=DIR",
          "max-num-batched-tokens is 2", "expected both or neither", "expected one of debug"})
        EXPECT_NE(all.find(part), std::string::npos) << part << " is not in\n" << all;
    EXPECT_EQ(errors.size(), 9u) << all;
    EXPECT_EQ(config.max_num_seqs, 3u) << "what is well counts";
    EXPECT_EQ(config.port, Config().port);
    EXPECT_EQ(build_config({*file}).error().message.find("many.toml:2: port"), path.size() - 9)
        << "in the order of the file";
}

TEST(Config, NamesTheSettingThatWasMeant) {
    const std::vector<std::string> names = {"max-num-seqs", "max-queue", "no-prefix-cache"};
    EXPECT_EQ(did_you_mean("max-num-sequences", names), "; did you mean max-num-seqs?");
    EXPECT_EQ(did_you_mean("prefix-cache", names), "; did you mean no-prefix-cache?");
    EXPECT_EQ(did_you_mean("quite-another", names), "");
}

TEST(Config, AFolderOrNothingIsNoFile) {
    for (const char* path : {"/", "/nonexistent/lorad.toml"}) {
        auto source = config_from_file(path);
        ASSERT_FALSE(source.ok()) << path;
        EXPECT_NE(source.error().message.find("expected a TOML file"), std::string::npos);
    }
}

TEST(Config, AnEmptyHostIsNotEveryAddress) {
    EXPECT_FALSE(build_config({flag("host", {""})}).ok());
    for (const char* name : {"a\nb", "a\xc2\x9b", "a\xe2\x80\xa8",
                             "\xe2\x80\xae"
                             "a",
                             "a\xff"})
        EXPECT_FALSE(build_config({flag("served-model-name", {name})}).ok()) << name;
    EXPECT_TRUE(build_config({flag("served-model-name", {"caf\xc3\xa9/7b"})}).ok());
}

TEST(Config, ListsComeFromEverySource) {
    auto file = from_file_of("lora = [\"a=x\", \"b=y\"]\n");
    ASSERT_TRUE(file.ok()) << file.error().message;
    auto config = build_config({*file});
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(lora_arguments(*config)->at(1).dir, "y");
    setenv("LORAD_LORA", "c=z,d=w", 1);
    auto environment = config_from_environment();
    unsetenv("LORAD_LORA");
    ASSERT_TRUE(environment.ok());
    config = build_config({*file, *environment});
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(config->lora, (std::vector<std::string>{"c=z", "d=w"}));
}

TEST(Config, AdapterArgumentsNeedNameAndFolderOnce) {
    for (const char* bad : {"x", "=dir", "name="}) EXPECT_FALSE(build_config({flag("lora", {bad})}).ok()) << bad;
    EXPECT_FALSE(build_config({flag("lora", {"a=x", "a=y"})}).ok());
}

TEST(Config, SwitchesTakeTrueAndFalseOnly) {
    EXPECT_TRUE(build_config({flag("batch-invariant", {"true"})})->batch_invariant);
    EXPECT_FALSE(
        build_config({flag("batch-invariant", {"true"}), flag("batch-invariant", {"false"})})->batch_invariant);
    EXPECT_FALSE(build_config({flag("batch-invariant", {"yes"})}).ok());
}

TEST(Config, AStepMustHoldATokenOfEverySequence) {
    auto config = build_config({flag("max-num-seqs", {"64"}), flag("max-num-batched-tokens", {"32"})});
    ASSERT_FALSE(config.ok());
    EXPECT_NE(config.error().message.find("32"), std::string::npos);
    EXPECT_NE(config.error().message.find("64"), std::string::npos);
}

TEST(Config, EveryOptionIsDocumentedOnce) {
    std::vector<std::string> names;
    for (const ConfigOption& option : config_options()) {
        EXPECT_FALSE(option.help.empty()) << option.name;
        EXPECT_EQ(std::count(names.begin(), names.end(), option.name), 0) << option.name;
        names.push_back(option.name);
    }
    EXPECT_GT(names.size(), 20u);
}

}  // namespace
}  // namespace lorad::server::config_test
