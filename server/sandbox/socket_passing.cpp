#include "server/sandbox/socket_passing.h"

#include <cerrno>
#include <cstring>

#include <sys/socket.h>

namespace lorad::server::sandbox {
namespace {

// Has room for one byte and one socket.
struct Message {
    char byte = 0;
    iovec piece{&byte, 1};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
    msghdr head{};

    Message() {
        head.msg_iov = &piece;
        head.msg_iovlen = 1;
        head.msg_control = room;
        head.msg_controllen = sizeof room;
    }
    Message(const Message&) = delete;
    Message& operator=(const Message&) = delete;
};

}  // namespace

bool send_socket(int control, int socket) {
    Message message;
    cmsghdr* head = CMSG_FIRSTHDR(&message.head);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof socket);
    std::memcpy(CMSG_DATA(head), &socket, sizeof socket);
    return sendmsg(control, &message.head, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

int receive_socket(int control) {
    Message message;
    for (;;) {
        const ssize_t n = recvmsg(control, &message.head, MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR) continue;
        const cmsghdr* head = n > 0 ? CMSG_FIRSTHDR(&message.head) : nullptr;
        if (head == nullptr || head->cmsg_type != SCM_RIGHTS) return -1;
        int socket = -1;
        std::memcpy(&socket, CMSG_DATA(head), sizeof socket);
        return socket;
    }
}

}  // namespace lorad::server::sandbox
