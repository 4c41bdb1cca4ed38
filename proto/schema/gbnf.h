// llama.cpp's grammars (GBNF) in Lark's form, which the grammar compiler reads.
#pragma once

#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace lorad::proto {

// Returns true if the text looks like GBNF: NAME ::= ...
bool looks_like_gbnf(std::string_view text);

// The same language, exactly: each character becomes a terminal of its own, since the compiler's
// lexer takes the longest terminal and GBNF has none. kInvalidRequest with line and column, for
// what llama.cpp refuses as well, and for its <token> references, which are not done here.
Result<std::string> gbnf_to_lark(std::string_view text);

}  // namespace lorad::proto
