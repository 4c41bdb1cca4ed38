// Texts that stand in the place of a conversation's own while it is tried on a chat template: what comes out shows what
// the template does with each. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lorad::server {

class Marks {
  public:
    enum class Fate : uint8_t {
        kLost,
        kChanged,  // it came out, but written as JSON or as Python prints a list
        kWhole,
    };

    size_t size() const { return fates_.size(); }
    // The text of one more, whose number is what size() was. Digits, which no filter spells otherwise, and quotes,
    // which change in whatever is no plain text; a name has no quotes.
    std::string add();
    std::string add_name();
    // Finds the fate of each mark; before, all are lost.
    void read(std::string_view rendered);
    Fate fate(size_t mark) const { return fates_[mark]; }
    bool is_out(size_t mark) const { return fates_[mark] != Fate::kLost; }

  private:
    std::vector<Fate> fates_;
    std::vector<bool> is_name_;
};

}  // namespace lorad::server
