#include "gpu/facts/start_record.h"

#include <fstream>
#include <iterator>

#include <gmock/gmock.h>

#include "tests/support/temp_dir.h"

namespace lorad::gpu::testing::start_record_test {
namespace {

using ::testing::HasSubstr;

const RecordOwner kOwner{"llvmpipe, Mesa 25.0.7, 00ff", "abc1"};

class StartRecordTest : public ::testing::Test {
  protected:
    void put(const RecordOwner& owner, const std::string& key, const std::string& value) const {
        StartRecord record(file_, owner);
        record.put(key, value);
        record.save();
    }
    // What a start finds, and what it says in the log.
    std::optional<std::string> find(const RecordOwner& owner, const std::string& key, std::string& told) const {
        ::testing::internal::CaptureStderr();
        const StartRecord record(file_, owner);
        told = ::testing::internal::GetCapturedStderr();
        EXPECT_TRUE(record.was_there() || !record.find(key).has_value());
        return record.find(key);
    }
    std::string read() const {
        std::ifstream in(file_, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    }

    lorad::testing::TempDir folder_;
    const std::filesystem::path file_ = folder_.path() / "below" / "pipelines.bin.start";
    std::string told_;
};

TEST_F(StartRecordTest, TheNextStartOfTheSameBuildOnTheSameDeviceFindsIt) {
    put(kOwner, "ladder-1", "0110\tmatmul (relative error 1.0e-01)");
    put(kOwner, "rates", "5 6");
    EXPECT_EQ(find(kOwner, "ladder-1", told_), "0110\tmatmul (relative error 1.0e-01)");
    EXPECT_EQ(find(kOwner, "rates", told_), "5 6") << "what is put later stands beside what was there";
    EXPECT_EQ(told_, "");
}

TEST_F(StartRecordTest, AStartDoesNotFindWhatItHasPutItself) {
    StartRecord record(file_, kOwner);
    record.put("a", "b");
    EXPECT_EQ(record.find("a"), std::nullopt);
}

TEST_F(StartRecordTest, OneOfAnotherDeviceOrDriverIsIgnoredWithAWarning) {
    put(kOwner, "a", "b");
    EXPECT_EQ(find({"llvmpipe, Mesa 25.0.8, 00ff", "abc1"}, "a", told_), std::nullopt);
    EXPECT_THAT(told_, HasSubstr("is of another device or driver (llvmpipe, Mesa 25.0.7, 00ff; this is llvmpipe, Mesa "
                                 "25.0.8, 00ff): ignored"));
    EXPECT_EQ(find(kOwner, "a", told_), "b");
}

TEST_F(StartRecordTest, OneOfAnotherBuildIsNotUsed) {
    put(kOwner, "a", "b");
    EXPECT_EQ(find({kOwner.device, "abc2"}, "a", told_), std::nullopt);
    EXPECT_THAT(told_, HasSubstr("another build of lorad"));
    put({kOwner.device, "abc2"}, "c", "d");
    EXPECT_EQ(find({kOwner.device, "abc2"}, "a", told_), std::nullopt) << "nothing of it is taken over";
    EXPECT_EQ(find({kOwner.device, "abc2"}, "c", told_), "d");
}

TEST_F(StartRecordTest, AnyDamageIsSeen) {
    put(kOwner, "a", "b");
    const std::string whole = read();
    for (size_t i = 0; i <= whole.size(); ++i) {
        std::string bytes = whole.substr(0, i);
        if (i < whole.size()) bytes += std::string(1, static_cast<char>(whole[i] ^ 1)) + whole.substr(i + 1);
        if (i == whole.size()) bytes += "x";
        std::ofstream(file_, std::ios::binary) << bytes;
        EXPECT_EQ(find(kOwner, "a", told_), std::nullopt) << i;
        EXPECT_THAT(told_, HasSubstr("ignored")) << i;
    }
}

TEST_F(StartRecordTest, WithoutADigestOfTheProgramNothingIsKept) {
    put({kOwner.device, ""}, "a", "b");
    EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(StartRecordTest, AFileThatCannotBeWrittenIsOnlyAWarning) {
    std::ofstream(folder_.path() / "below") << "a file where a folder is needed";
    ::testing::internal::CaptureStderr();
    put(kOwner, "a", "b");
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("could not be written"));
}

}  // namespace
}  // namespace lorad::gpu::testing::start_record_test
