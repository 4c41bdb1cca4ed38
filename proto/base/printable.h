// Text that may stand raw in a line for people and their tools: in a log, a page of metrics, a message on a terminal.
// Not printable are
//   controls: C0, DEL, C1 (a terminal obeys U+009B, some readers end a line at U+0085);
//   separators of lines and paragraphs, U+2028 and U+2029;
//   characters that reorder their neighbours: the bidirectional marks, embeddings, overrides and isolates;
//   invisible characters: soft hyphens, zero-width spaces, byte order marks, tags, fillers, annotations, except for
//   joiners and variation selectors, without which some languages cannot be written;
//   bytes that are no UTF-8, and code points that Unicode reserves as noncharacters.
//
// Each output has one owner, and all owners call these two functions: check_adapter_name refuses names, log.cpp escapes
// lines of the log, escaped_label labels, error_message messages of errors. Headers are percent-encoded (proto/url.h).
// Other JSON texts are not escaped: their readers decode them, and a model may say anything.
#pragma once

#include <string>
#include <string_view>

namespace lorad {

bool is_printable(std::string_view text);

// Writes unprintable characters as \n, \r, \t or \uXXXX like JSON strings (two of them beyond U+FFFF), so that a JSON
// text stays valid and keeps its meaning; bytes that are no UTF-8 become U+FFFD.
std::string escape_unprintable(std::string_view text);

}  // namespace lorad
