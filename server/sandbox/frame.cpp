#include "server/sandbox/frame.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>

namespace lorad::server::sandbox {
namespace {

// Until the socket can be read or written; false at the deadline.
bool wait_for(int socket, short events, const Deadline& deadline) {
    for (;;) {
        int timeout_ms = -1;
        if (deadline) {
            const auto left =
                std::chrono::ceil<std::chrono::milliseconds>(*deadline - std::chrono::steady_clock::now());
            if (left.count() <= 0) return false;
            timeout_ms = static_cast<int>(std::min<int64_t>(left.count(), 3'600'000));
        }
        pollfd waits{socket, events, 0};
        const int n = poll(&waits, 1, timeout_ms);
        if (n > 0 || (n < 0 && errno != EINTR)) return true;
    }
}

Transfer write_all(int socket, const char* bytes, size_t n_bytes, const Deadline& deadline) {
    while (n_bytes > 0) {
        const ssize_t n = send(socket, bytes, n_bytes, MSG_NOSIGNAL | (deadline ? MSG_DONTWAIT : 0));
        if (n >= 0) {
            bytes += n;
            n_bytes -= static_cast<size_t>(n);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!wait_for(socket, POLLOUT, deadline)) return Transfer::kLate;
        } else if (errno != EINTR) {
            return Transfer::kGone;
        }
    }
    return Transfer::kDone;
}

Transfer read_all(int socket, char* bytes, size_t n_bytes, const Deadline& deadline) {
    while (n_bytes > 0) {
        const ssize_t n = recv(socket, bytes, n_bytes, deadline ? MSG_DONTWAIT : 0);
        if (n > 0) {
            bytes += n;
            n_bytes -= static_cast<size_t>(n);
        } else if (n == 0) {
            return Transfer::kGone;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!wait_for(socket, POLLIN, deadline)) return Transfer::kLate;
        } else if (errno != EINTR) {
            return Transfer::kGone;
        }
    }
    return Transfer::kDone;
}

}  // namespace

// kind, number of fields, their lengths; then the fields.
Transfer write_frame(int socket, const Frame& frame, Deadline deadline) {
    std::vector<uint32_t> head = {frame.kind, static_cast<uint32_t>(frame.fields.size())};
    uint64_t n_all = 0;
    for (const std::string& field : frame.fields) {
        head.push_back(static_cast<uint32_t>(field.size()));
        n_all += field.size();
    }
    if (frame.fields.size() > kFrameFieldsMax || n_all > kFrameBytesMax) return Transfer::kTooLarge;
    Transfer done =
        write_all(socket, reinterpret_cast<const char*>(head.data()), head.size() * sizeof head[0], deadline);
    for (const std::string& field : frame.fields) {
        if (done == Transfer::kDone) done = write_all(socket, field.data(), field.size(), deadline);
    }
    return done;
}

Transfer read_frame(int socket, Frame& frame, Deadline deadline) {
    frame.fields.clear();
    uint32_t head[2] = {};
    Transfer done = read_all(socket, reinterpret_cast<char*>(head), sizeof head, deadline);
    if (done != Transfer::kDone) return done;
    if (head[1] > kFrameFieldsMax) return Transfer::kGone;
    frame.kind = head[0];
    std::vector<uint32_t> lengths(head[1]);
    done = read_all(socket, reinterpret_cast<char*>(lengths.data()), lengths.size() * sizeof lengths[0], deadline);
    uint64_t n_all = 0;
    for (const uint32_t length : lengths) n_all += length;
    if (n_all > kFrameBytesMax) return Transfer::kGone;
    for (const uint32_t length : lengths) {
        if (done != Transfer::kDone) return done;
        frame.fields.emplace_back(length, '\0');
        done = read_all(socket, frame.fields.back().data(), length, deadline);
    }
    return done;
}

std::string number_field(uint64_t number) { return std::to_string(number); }

uint64_t field_number(const std::string& field) {
    uint64_t number = 0;
    (void)std::from_chars(field.data(), field.data() + field.size(), number);
    return number;
}

}  // namespace lorad::server::sandbox
