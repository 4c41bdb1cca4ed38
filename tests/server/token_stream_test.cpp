#include "server/engine/token_stream.h"

#include <thread>

#include <gtest/gtest.h>

#include "server/engine/request_queue.h"

namespace lorad::server::token_stream_test {
namespace {

using std::chrono::milliseconds;

TEST(TokenStream, TokensComeInOrderAndBeforeTheEnd) {
    TokenStream stream(1000);
    std::thread producer([&] {
        for (TokenId token = 0; token < 1000; ++token) stream.push(token);
        stream.close({FinishReason::kLength, std::nullopt});
    });
    std::vector<TokenId> tokens;
    std::optional<StreamEnd> end;
    while (!end) {
        TokenStream::Batch batch = stream.pop(milliseconds(1000));
        tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
        end = batch.end;
    }
    producer.join();
    ASSERT_EQ(tokens.size(), 1000u);
    for (TokenId i = 0; i < 1000; ++i) EXPECT_EQ(tokens[size_t(i)], i);
    EXPECT_EQ(end->reason, FinishReason::kLength);
}

TEST(TokenStream, AnEmptyBatchAfterTheTimeout) {
    TokenStream stream(1);
    TokenStream::Batch batch = stream.pop(milliseconds(1));
    EXPECT_TRUE(batch.tokens.empty());
    EXPECT_FALSE(batch.end);
}

TEST(TokenStream, TheFirstReasonToCancelCounts) {
    TokenStream stream(1);
    EXPECT_FALSE(stream.cancelled());
    stream.cancel(FinishReason::kStop);
    stream.cancel();
    EXPECT_EQ(stream.cancelled(), FinishReason::kStop);
}

TEST(TokenStreamDeathTest, MoreTokensThanAskedForAreABug) {
    TokenStream stream(1);
    stream.push(1);
    EXPECT_DEATH(stream.push(2), "CHECK");
}

TEST(RequestQueue, CountsUntilRequestsLeaveWaiting) {
    RequestQueue queue(2, 1000);
    Request a, b, c;
    EXPECT_TRUE(queue.push(a).ok());
    EXPECT_TRUE(queue.push(b).ok());
    EXPECT_EQ(queue.push(c).error().code, ErrorCode::kOverloaded);
    EXPECT_EQ(queue.drain().size(), 2u);
    EXPECT_EQ(queue.push(c).error().code, ErrorCode::kOverloaded) << "drained is not yet admitted";
    queue.leave_waiting(1, 0);
    EXPECT_TRUE(queue.push(c).ok());
    EXPECT_EQ(queue.n_waiting(), 2u);
}

TEST(RequestQueue, CountsTheTokensOfPromptsAsWell) {
    RequestQueue queue(10, 100);
    auto request_of = [](size_t n_tokens) {
        Request request;
        request.prompt.resize(n_tokens, 1);
        return request;
    };
    Request large = request_of(101), small = request_of(30), other = request_of(71);
    EXPECT_TRUE(queue.push(large).ok()) << "alone it is taken, or it never would be";
    EXPECT_EQ(queue.check_room().error().code, ErrorCode::kOverloaded);
    EXPECT_EQ(queue.push(small).error().code, ErrorCode::kOverloaded);
    EXPECT_EQ(small.prompt.size(), 30u);
    EXPECT_EQ(queue.drain().size(), 1u);
    queue.leave_waiting(1, 101);
    EXPECT_TRUE(queue.push(small).ok());
    EXPECT_TRUE(queue.check_room().ok());
    EXPECT_EQ(queue.push(other).error().code, ErrorCode::kOverloaded);
    other.prompt.pop_back();
    EXPECT_TRUE(queue.push(other).ok());
}

TEST(RequestQueue, TakesAllOfAGroupOrNothing) {
    RequestQueue queue(4, 100);
    auto group_of = [](size_t n, size_t n_tokens) {
        std::vector<Request> group(n);
        for (Request& request : group) request.prompt.resize(n_tokens, 1);
        return group;
    };
    std::vector<Request> two = group_of(2, 10), three = group_of(3, 10), long_ones = group_of(2, 50);
    EXPECT_TRUE(queue.push(two).ok());
    EXPECT_EQ(queue.push(three).error().code, ErrorCode::kOverloaded);
    EXPECT_EQ(queue.push(long_ones).error().code, ErrorCode::kOverloaded);
    EXPECT_EQ(three[0].prompt.size(), 10u);
    EXPECT_EQ(queue.n_waiting(), 2u);
    EXPECT_EQ(queue.drain().size(), 2u);
    queue.leave_waiting(2, 20);
    // More than the queue holds: it would be refused for ever if it were not taken alone.
    std::vector<Request> five = group_of(5, 30);
    EXPECT_TRUE(queue.push(five).ok());
    EXPECT_EQ(queue.n_waiting(), 5u);
    EXPECT_EQ(queue.n_waiting_tokens(), 150u);
    EXPECT_EQ(queue.push(two).error().code, ErrorCode::kOverloaded);
}

TEST(RequestQueue, AfterCloseEveryPushGetsItsReason) {
    RequestQueue queue(2, 1000);
    queue.close(make_error(ErrorCode::kDraining, "bye"));
    Request request;
    Status status = queue.push(request);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kDraining);
}

TEST(RequestQueue, WaitEndsWithARequest) {
    RequestQueue queue(2, 1000);
    std::thread producer([&] {
        Request request;
        EXPECT_TRUE(queue.push(request).ok());
    });
    queue.wait(milliseconds(10000));
    producer.join();
    EXPECT_EQ(queue.drain().size(), 1u);
}

}  // namespace
}  // namespace lorad::server::token_stream_test
