#include "adapters/files/source.h"

#include <cerrno>
#include <fstream>
#include <tuple>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/adapters/adapter_folder.h"

namespace lorad::adapters::source_test {
namespace {

using ::testing::HasSubstr;
using namespace lorad::testing;

SourceFile file(std::string name, std::string_view text) {
    return {std::move(name), FileBytes::copy_of(std::as_bytes(std::span(text)))};
}
template <typename... Files>
std::vector<SourceFile> files(Files... some) {
    std::vector<SourceFile> list;
    (list.push_back(std::move(some)), ...);
    return list;
}

TEST(AdapterSource, AFolderAndTheSameFilesByUploadAreOneGeneration) {
    const AdapterFolder folder;
    const auto read = read_adapter_source(folder.path());
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->kind, AdapterKind::kPeft);
    ASSERT_EQ(read->files.size(), 2u);
    const auto made = make_adapter_source(files(file("adapter_model.safetensors", read->file(kPeftFile).text()),
                                                file("adapter_config.json", read->file(kConfigFile).text())));
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(made->generation, read->generation);
    EXPECT_EQ(made->n_bytes(), read->n_bytes());
}

TEST(AdapterSource, TheGenerationIsWhatSha256sumOfTheFilesHashesTo) {
    // printf '{}' > adapter_config.json; printf '12345678' > adapter_model.safetensors
    // sha256sum adapter_config.json adapter_model.safetensors | sha256sum
    const auto made =
        make_adapter_source(files(file("adapter_config.json", "{}"), file("adapter_model.safetensors", "12345678")));
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made->generation, "d144d020a8f8025133a80517bf529c49298c862d0cca942521260848ee773f64");
    EXPECT_EQ(generation_of({{"adapter_model.safetensors", sha256_hex(made->file(kPeftFile).span())},
                             {"adapter_config.json", sha256_hex(made->file(kConfigFile).span())}}),
              made->generation);
}

TEST(AdapterSource, KindsAreToldByTheNamesOfTheFiles) {
    const auto mlx =
        make_adapter_source(files(file("adapters.safetensors", "12345678"), file("adapter_config.json", "{}")));
    ASSERT_TRUE(mlx.ok()) << mlx.error().message;
    EXPECT_EQ(mlx->kind, AdapterKind::kMlx);
    const auto gguf = make_adapter_source(files(file("sql-lora.f16.gguf", "GGUF....")));
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    EXPECT_EQ(gguf->kind, AdapterKind::kGguf);
    EXPECT_EQ(gguf->files[0].name, "adapter.gguf");
}

// They go to clients, who may have guessed a folder, and into the log.
TEST(AdapterSource, MessagesHoldNoPath) {
    const TempDir folder;
    const std::filesystem::path empty = folder.path() / "secret-place";
    std::filesystem::create_directory(empty);
    std::ofstream(empty / "file") << "x";
    std::ofstream(folder.path() / "broken.gguf") << "x";
    for (const std::filesystem::path& path : {empty / "missing", empty / "file", empty, empty / "file" / "below",
                                              empty / std::string("a\0b", 3), folder.path() / "broken.gguf"}) {
        const auto read = read_adapter_source(path);
        ASSERT_FALSE(read.ok()) << path;
        EXPECT_THAT(read.error().message,
                    Not(AnyOf(HasSubstr("secret-place"), HasSubstr(folder.path().string()), HasSubstr("missing\""))))
            << path;
    }
}

TEST(AdapterSource, FoldersAndFilesOfAllKindsAreRead) {
    AdapterFolder folder;
    folder.remove("adapter_model.safetensors");
    folder.write("one.gguf", "GGUF1");
    EXPECT_EQ(read_adapter_source(folder.path())->kind, AdapterKind::kGguf);
    EXPECT_EQ(read_adapter_source(folder.path() / "one.gguf")->generation,
              read_adapter_source(folder.path())->generation);
    folder.write("two.gguf", "GGUF2");
    EXPECT_THAT(read_adapter_source(folder.path()).error().message, HasSubstr("2 .gguf files"));
    EXPECT_TRUE(read_adapter_source(folder.path() / "two.gguf").ok());
    folder.write("adapters.safetensors", "12345678");
    EXPECT_EQ(read_adapter_source(folder.path())->kind, AdapterKind::kMlx);
    folder.write("adapter_model.safetensors", "12345678");
    EXPECT_EQ(read_adapter_source(folder.path())->kind, AdapterKind::kPeft);
}

// A folder of somebody's below the one that adapters are read from, beside files of the host.
struct RootTest : ::testing::Test {
    RootTest() {
        std::filesystem::create_directories(root / "sound/deep");
        std::filesystem::create_directories(host);
        for (const std::string_view name : {kConfigFile, kPeftFile}) {
            std::filesystem::copy_file(folder.path() / name, root / "sound" / name);
            std::filesystem::copy_file(folder.path() / name, host / name);
        }
        std::ofstream(host / "secret") << "root:x:0:0";
        std::ofstream(host / "one.gguf") << "GGUF1";
    }
    std::filesystem::path linked(const std::string& name, std::string_view file, const std::filesystem::path& to) {
        const std::filesystem::path made = root / name;
        std::filesystem::copy(root / "sound", made);
        std::filesystem::remove(made / file);
        std::filesystem::create_symlink(to, made / file);
        return name;
    }
    ErrorCode refused(const std::filesystem::path& below) {
        const auto read = read_adapter_source(AdapterLocation(root, below));
        EXPECT_FALSE(read.ok()) << below;
        if (read.ok()) return ErrorCode::kInternal;
        EXPECT_THAT(read.error().message, Not(HasSubstr(root.string()))) << below;
        return read.error().code;
    }
    const AdapterFolder folder;
    const TempDir own;
    const std::filesystem::path root = own.path() / "root", host = own.path() / "host";
};

TEST_F(RootTest, NoLinkBelowTheRootIsFollowed) {
    ASSERT_TRUE(read_adapter_source(AdapterLocation(root, "sound")).ok());
    for (const std::string_view file :
         {kConfigFile, kPeftFile, kTemplateFile, std::string_view("tokenizer_config.json")}) {
        const std::filesystem::path outside = linked(std::string(file) + "-outside", file, host / "secret");
        EXPECT_EQ(refused(outside), ErrorCode::kAdapterPathForbidden) << file;
        EXPECT_EQ(refused(linked(std::string(file) + "-nowhere", file, host / "nothing")),
                  ErrorCode::kAdapterPathForbidden)
            << file;
        // Nor to a file of its own root.
        EXPECT_EQ(refused(linked(std::string(file) + "-inside", file, root / "sound" / kConfigFile)),
                  ErrorCode::kAdapterPathForbidden)
            << file;
    }
    // Whoever names files on the command line may have them as links.
    EXPECT_TRUE(read_adapter_source(root / linked("by-hand", kConfigFile, host / kConfigFile)).ok());
    std::filesystem::create_symlink(host, root / "folder");
    EXPECT_EQ(refused("folder"), ErrorCode::kAdapterPathForbidden);
    EXPECT_EQ(refused("folder/one.gguf"), ErrorCode::kAdapterPathForbidden);
    std::filesystem::create_symlink(host / "one.gguf", root / "one.gguf");
    EXPECT_EQ(refused("one.gguf"), ErrorCode::kAdapterPathForbidden);
    std::filesystem::create_directory(root / "gguf");
    std::filesystem::create_symlink(host / "one.gguf", root / "gguf/one.gguf");
    EXPECT_EQ(refused("gguf"), ErrorCode::kAdapterPathForbidden);
    EXPECT_EQ(refused("nothing"), ErrorCode::kAdapterNotFound);
}

TEST_F(RootTest, BothWaysToOpenStayBelowTheRoot) {
    std::filesystem::create_symlink(host, root / "out");
    std::filesystem::create_symlink("sound", root / "in");
    const OwnedFd fd(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    for (const auto way : {open_beneath, walk_beneath}) {
        EXPECT_TRUE(way(fd.get(), "sound/adapter_config.json", O_RDONLY).ok());
        EXPECT_TRUE(way(fd.get(), "sound/deep", O_PATH).ok());
        for (const char* path : {"out", "out/secret", "in", "in/adapter_config.json"}) {
            for (const int flags : {O_PATH, O_RDONLY}) {
                errno = 0;
                EXPECT_FALSE(way(fd.get(), path, flags).ok()) << path;
                EXPECT_EQ(errno, ELOOP) << path;
            }
        }
        EXPECT_FALSE(way(fd.get(), "nothing", O_PATH).ok());
        EXPECT_EQ(errno, ENOENT);
    }
}

// Bytes that this process has read from files.
uint64_t n_bytes_read() {
    std::ifstream io("/proc/self/io");
    std::string word;
    uint64_t value = 0;
    while (io >> word >> value && word != "rchar:") {
    }
    return value;
}

TEST(AdapterSource, OfALargeFileTheBeginningIsComparedWithItsLengthBeforeItIsRead) {
    const AdapterFolder folder;
    const std::string sound = safetensors_bytes(plain_tensors());
    const std::string end_of_data = "bytes follow the last tensor's";
    std::string gguf("GGUF\3\0\0\0", 8);
    gguf.append(16, '\x7f');
    const std::string zeros(24, '\0');
    const std::tuple<std::string_view, std::string, std::string> cases[] = {
        {kPeftFile, sound, end_of_data},
        {kPeftFile, "\xff\xff\xff\xff\xff\xff\xff\xff", "its header claims"},
        {kPeftFile, "PK\x03\x04", "pickle"},
        {kPeftFile, gguf, "found a GGUF file"},
        {kMlxFile, sound, end_of_data},
        {kGgufFile, gguf, "at most"},
        {kGgufFile, zeros, "expected a GGUF file"},
    };
    for (const auto& [name, beginning, expected] : cases) {
        for (const std::string_view other : {kPeftFile, kMlxFile, kGgufFile})
            std::filesystem::remove(folder.path() / other);
        folder.write(std::string(name), beginning);
        std::filesystem::resize_file(folder.path() / name, uint64_t{1} << 30);  // takes no room on the disk
        const uint64_t before = n_bytes_read();
        const auto source = read_adapter_source(folder.path());
        EXPECT_LT(n_bytes_read() - before, 1u << 20) << name << ' ' << expected;
        ASSERT_FALSE(source.ok()) << name << ' ' << expected;
        EXPECT_THAT(source.error().message, HasSubstr(std::string(name))) << expected;
        EXPECT_THAT(source.error().message, HasSubstr(expected)) << name;
    }
}

TEST(AdapterSource, AWholeModelIsNamed) {
    const TempDir dir;
    const auto put = [&](const char* name, std::string_view text) { std::ofstream(dir.path() / name) << text; };
    const auto refusal = [](const std::filesystem::path& path) {
        const auto read = read_adapter_source(path);
        return read.ok() ? std::string("an adapter") : read.error().message;
    };
    put("config.json", R"({"architectures": ["LlamaForCausalLM"]})");
    put("model.safetensors", "12345678");
    EXPECT_THAT(refusal(dir.path()), HasSubstr("a whole model (config.json, no adapter_config.json), not an adapter"));
    EXPECT_THAT(refusal(dir.path()), HasSubstr("--model DIR"));
    EXPECT_THAT(refusal(dir.path() / "model.safetensors"),
                HasSubstr("one safetensors file: give the folder that it lies in"));
    put("adapter_config.json", "{}");
    EXPECT_THAT(refusal(dir.path()), HasSubstr("adapter_model.safetensors"));
}

TEST(AdapterSource, WhatIsNoAdapterIsRefusedByName) {
    const auto refused = [](std::vector<SourceFile> list) {
        const auto source = make_adapter_source(std::move(list));
        EXPECT_FALSE(source.ok());
        return source.ok() ? Error() : source.error();
    };
    const std::string config = "adapter_config.json", peft = "adapter_model.safetensors";
    EXPECT_THAT(refused(files()).message, HasSubstr("found none"));
    EXPECT_THAT(refused(files(file(config, "{}"))).message, HasSubstr("found none"));
    EXPECT_THAT(refused(files(file(peft, "12345678"))).message, HasSubstr("expected one adapter_config.json"));
    EXPECT_THAT(refused(files(file(config, "{}"), file(config, "{}"), file(peft, "12345678"))).message,
                HasSubstr("found 2"));
    EXPECT_THAT(refused(files(file(config, "{}"), file("a.gguf", "GGUF"))).message,
                HasSubstr("expected no adapter_config.json"));
    EXPECT_THAT(refused(files(file(config, "{}"), file(peft, "12345678"), file("a.gguf", "GGUF"))).message,
                HasSubstr("the weights of one adapter"));
    EXPECT_THAT(refused(files(file(config, "{}"), file(peft, "12345678"), file("../x", "1"))).message,
                HasSubstr("\"../x\""));
    EXPECT_EQ(refused(files(file(config, "{}"), file("adapter_model.bin", "PK"))).code, ErrorCode::kAdapterUnsupported);
    EXPECT_THAT(refused(files(file(config, "{}"), file(peft, "GGUF...."))).message, HasSubstr("found a GGUF file"));
    EXPECT_THAT(refused(files(file("x.gguf", "12345678"))).message, HasSubstr("expected a GGUF file"));
    for (const char* name : {"adapter_model.safetensors", "adapters.safetensors"}) {
        const Error error = refused(files(file(config, "{}"), file(name, "PK\x03\x04....")));
        EXPECT_EQ(error.code, ErrorCode::kAdapterUnsupported);
        EXPECT_THAT(error.message, HasSubstr("a pickle under the name"));
    }
    EXPECT_EQ(refused(files(file("x.gguf", "\x80\x04....zzzz"))).code, ErrorCode::kAdapterUnsupported);
}

}  // namespace
}  // namespace lorad::adapters::source_test
