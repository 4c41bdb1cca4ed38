#include "model/gguf/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/gguf/gguf_names.h"
#include "tests/support/gguf_writer.h"

namespace lorad::model::gguf_file_test {
namespace {

using lorad::testing::GgufWriter;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<GgufFile> parse(const std::string& bytes) {
    return parse_gguf(std::as_bytes(std::span(bytes)), kGgufModelCodes);
}
// An adapter's file, which may have no gaps.
std::string refused(const std::string& bytes) {
    const auto gguf = parse_gguf(std::as_bytes(std::span(bytes)), kGgufAdapterCodes);
    return gguf.ok() ? std::string() : gguf.error().message;
}

GgufWriter small_gguf() {
    GgufWriter writer;
    writer.text("general.architecture", "llama").text("general.type", "adapter");
    writer.tensor("blk.0.attn_v.weight.lora_a", 0, {4, 40}, std::string(640, 1));
    writer.tensor("blk.0.attn_v.weight.lora_b", 0, {32, 4}, std::string(512, 2));
    return writer;
}

TEST(GgufFile, GivesFieldsAndTensorsAsTheyAre) {
    GgufWriter writer;
    writer.text("text", "a")
        .number<uint8_t>("small", 0, 200)
        .number<float>("real", 6, 1.5f)
        .number<int64_t>("large", 11, -5);
    writer.number<uint64_t>("huge", 10, uint64_t{1} << 63)
        .number<uint8_t>("flag", 7, 1)
        .array("list", {3, 4})
        .texts("words", {"", "ab"});
    writer.tensor("b", 12, {2, 256}, std::string(288, 7)).tensor("a", 30, {1, 3, 2}, std::string(12, 9));
    const std::string bytes = writer.file();
    const auto gguf = parse(bytes);
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    EXPECT_EQ(gguf->text("text"), "a");
    EXPECT_EQ(gguf->field("small")->as_integer(), 200);
    EXPECT_EQ(gguf->field("small")->as_flag(), std::nullopt);
    EXPECT_EQ(gguf->field("real")->as_number(), 1.5);
    EXPECT_EQ(gguf->field("real")->as_integer(), std::nullopt);
    EXPECT_EQ(gguf->field("large")->as_integer(), -5);
    EXPECT_EQ(gguf->field("huge")->as_integer(), std::nullopt);
    EXPECT_EQ(gguf->field("flag")->as_flag(), true);
    EXPECT_THAT(*gguf->field("list")->as_integers(), ElementsAre(3, 4));
    EXPECT_THAT(*gguf->field("words")->as_texts(), ElementsAre("", "ab"));
    EXPECT_EQ(gguf->field("words")->describe(), "an array of 2 (text)");
    ASSERT_EQ(gguf->tensors.size(), 2u);
    EXPECT_EQ(gguf->tensors[0].type, GgmlType::kBF16);
    EXPECT_EQ(gguf->tensors[0].shape, (std::vector<uint64_t>{3, 2}));
    EXPECT_EQ(gguf->tensors[1].type, GgmlType::kQ4_K);
    EXPECT_EQ(gguf->tensors[1].data.size(), 288u);
    EXPECT_EQ(gguf->tensors[1].data[0], std::byte{7});
}

TEST(GgufFile, BrokenFilesAreRefusedWithThePlace) {
    const std::string sound = small_gguf().file();
    ASSERT_TRUE(parse(sound).ok());
    EXPECT_THAT(refused(""), HasSubstr("cut short: the magic number"));
    EXPECT_THAT(refused("GGML...."), HasSubstr("does not begin with GGUF"));
    for (size_t size = 4; size < sound.size(); size += 3) EXPECT_NE(refused(sound.substr(0, size)), "");
    EXPECT_THAT(refused(sound + std::string(64, 'x')), HasSubstr("follow the last tensor's"));
    GgufWriter writer = small_gguf();
    writer.version = 1;
    EXPECT_THAT(refused(writer.file()), HasSubstr("version 1 is not supported"));
    writer.version = 0x03000000;
    EXPECT_THAT(refused(writer.file()), HasSubstr("big-endian"));
    writer = small_gguf();
    writer.n_tensors = uint64_t{1} << 60;
    EXPECT_THAT(refused(writer.file()), HasSubstr("at most 65536"));
    writer = small_gguf();
    writer.text("general.type", "adapter");
    EXPECT_THAT(refused(writer.file()), HasSubstr("\"general.type\" occurs twice"));
    writer = small_gguf();
    writer.tensor("blk.0.attn_v.weight.lora_a", 0, {4}, std::string(16, 0));
    EXPECT_THAT(refused(writer.file()), HasSubstr("occurs twice"));
    writer = small_gguf();
    writer.tensor("x", 250, {32}, std::string(18, 0));
    EXPECT_THAT(refused(writer.file()), AllOf(HasSubstr("\"x\": ggml type 250 is not known"), HasSubstr("Q4_K")));
    writer = small_gguf();
    writer.tensor("x", 4, {32}, std::string(18, 0));
    EXPECT_THAT(refused(writer.file()), HasSubstr("ggml type 4 (Q4_2), which ggml has dropped"));
    writer = small_gguf();
    writer.tensor("x", 0, {uint64_t{1} << 40, uint64_t{1} << 40}, "");
    EXPECT_THAT(refused(writer.file()), HasSubstr("overflows 64 bits"));
    writer = small_gguf();
    writer.tensor("x", 8, {31}, "");
    EXPECT_THAT(refused(writer.file()), HasSubstr("multiple of 32"));
    writer = small_gguf();
    writer.tensor("x", 0, {0, 4}, "");
    EXPECT_THAT(refused(writer.file()), HasSubstr("a dimension of 0"));
    writer = small_gguf();
    writer.number<uint32_t>("general.alignment", 4, 33);
    EXPECT_THAT(refused(writer.file()), HasSubstr("a power of two"));
    writer = small_gguf();
    writer.number<uint32_t>("x", 77, 1);
    EXPECT_THAT(refused(writer.file()), HasSubstr("a value of type 77"));
}

TEST(GgufFile, TensorsLieBehindEachOtherAndAligned) {
    // The place of a tensor is the last number of its entry.
    const auto with_offset = [](uint64_t offset) {
        GgufWriter writer = small_gguf();
        writer.infos.replace(writer.infos.size() - 8, 8, reinterpret_cast<const char*>(&offset), 8);
        return refused(writer.file());
    };
    EXPECT_EQ(with_offset(640), "");
    EXPECT_THAT(with_offset(608), HasSubstr("begin at 608 of the data, expected 640 (they overlap another tensor's)"));
    EXPECT_THAT(with_offset(650), HasSubstr("not aligned"));
    EXPECT_THAT(with_offset(672), HasSubstr("a gap"));
    EXPECT_THAT(with_offset(~uint64_t{31}), HasSubstr("expected 640"));
    // A model that lacks a tensor has a gap where it was, and says later which one.
    GgufWriter writer = small_gguf();
    const uint64_t offset = 672;
    writer.infos.replace(writer.infos.size() - 8, 8, reinterpret_cast<const char*>(&offset), 8);
    const std::string with_gap = writer.file() + std::string(96, 'x');
    const auto model = parse(with_gap);
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(model->tensors[1].data.size(), 512u);
    EXPECT_EQ(model->tensors[1].data[511], std::byte{'x'}) << "32 bytes on";
    EXPECT_NE(refused(with_gap), "");
}

TEST(GgufNames, ArePartsOfADecoderInOurs) {
    EXPECT_EQ(name_from_gguf("blk.13.attn_q", false), "model.layers.13.self_attn.q_proj");
    EXPECT_EQ(name_from_gguf("blk.0.ffn_up", false), "model.layers.0.mlp.up_proj");
    EXPECT_EQ(name_from_gguf("blk.0.ffn_up", true), "model.layers.0.mlp.gate_up_proj");
    EXPECT_EQ(name_from_gguf("output", false), "lm_head");
    for (const char* other : {"blk.0.ffn_gate_exps", "blk.x.attn_q", "blk..attn_q", "blk.-1.attn_q", "attn_q", ""})
        EXPECT_EQ(name_from_gguf(other, false), std::nullopt) << other;
}

TEST(GgufNames, RowsOfQAndKGoThereAndBack) {
    std::vector<uint64_t> ours;
    for (uint64_t row = 0; row < 16; ++row) ours.push_back(row_from_gguf(row, 4));
    EXPECT_THAT(ours, ElementsAre(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
    for (uint64_t row = 0; row < 16; ++row) EXPECT_EQ(row_in_gguf(ours[row], 4), row);
}

}  // namespace
}  // namespace lorad::model::gguf_file_test
