// A socket handed to another process over a socket (unix(7), SCM_RIGHTS), with one byte.
#pragma once

namespace lorad::server::sandbox {

// Never waits. False where it could not be sent.
bool send_socket(int control, int socket);
// Waits. The socket that came, closed on exec; negative: the other side has ended, or sent something else.
int receive_socket(int control);

}  // namespace lorad::server::sandbox
