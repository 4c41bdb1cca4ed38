// One Vulkan device for all tests of a program, with core and synchronisation validation where the layer is installed:
// a single message fails the test that caused it, or the run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/command.h"
#include "gpu/device.h"
#include "gpu/queue.h"
#include "gpu/upload.h"
#include "tests/support/test_device.h"

namespace lorad::gpu::testing {

class DeviceEnvironment : public ::testing::Environment {
  public:
    static DeviceEnvironment* instance() {
        static auto* const environment =
            static_cast<DeviceEnvironment*>(::testing::AddGlobalTestEnvironment(new DeviceEnvironment));
        return environment;
    }

    // Made at first use. Without a device the tests cannot say anything, so that is a failure, never a skip.
    Device& device() {
        if (!device_) device_ = lorad::testing::make_test_device();
        return *device_;
    }

    void TearDown() override {
        if (!device_) return;
        EXPECT_EQ(device_->validation_message_count(), 0u) << "see the log for the messages";
        device_.reset();
    }

  private:
    std::unique_ptr<Device> device_;
};

// Registered before main() runs the tests.
inline DeviceEnvironment* const kDeviceEnvironment = DeviceEnvironment::instance();

inline Device& shared_device() { return kDeviceEnvironment->device(); }

class GpuTest : public ::testing::Test {
  protected:
    void SetUp() override { messages_before_ = shared_device().validation_message_count(); }
    void TearDown() override {
        EXPECT_EQ(shared_device().validation_message_count(), messages_before_) << "validation spoke up";
    }

    static Device& device() { return shared_device(); }

  private:
    uint64_t messages_before_ = 0;
};

// The value of a Result that the test takes for granted.
template <typename T>
T must(Result<T> result) {
    if (!result.ok()) {
        std::fprintf(stderr, "unexpected error: %s\n", result.error().message.c_str());
        std::abort();
    }
    return std::move(result).value();
}

inline Buffer make_buffer(uint64_t size_bytes, MemoryKind kind = MemoryKind::kDeviceLocal) {
    return must(shared_device().create_buffer(size_bytes, kind, "test"));
}

// Submits one recording and waits for it.
inline void run(const CommandBuffer& recording) {
    const CommandBuffer* recordings[] = {&recording};
    Queue& queue = shared_device().compute_queue();
    must(queue.wait(must(queue.submit(recordings))));
}

template <typename T>
void write_buffer(const Buffer& to, const std::vector<T>& values, uint64_t offset = 0) {
    Uploader& uploader = shared_device().uploader();
    must(uploader.upload(to, offset, std::as_bytes(std::span(values))));
    must(uploader.finish());
}

template <typename T>
std::vector<T> read_buffer(const Buffer& from, size_t n, uint64_t offset = 0) {
    const uint64_t size = n * sizeof(T);
    const Buffer host = make_buffer(size, MemoryKind::kHostReadback);
    auto recorder = must(Recorder::begin(shared_device()));
    recorder.copy(from, offset, host, 0, size);
    run(must(std::move(recorder).end()));
    std::vector<T> values(n);
    std::memcpy(values.data(), host.mapped().data(), size);
    return values;
}

}  // namespace lorad::gpu::testing
