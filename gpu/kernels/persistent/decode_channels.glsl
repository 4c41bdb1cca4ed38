// Part of decode_layers.comp: the channels, which are what workgroups say to each other and how they hear it, wait, give up
// and leave.
// ---- Channels ----

// Places in the channels, in words.
const uint kXChannel = 0;
const uint kQkvChannel = kXChannel + kHidden;
const uint kAttentionChannel = kQkvChannel + kQkv;        // two elements in a word
const uint kActChannel = kAttentionChannel + kQ / 2;      // two elements in a word
const uint kPartialsChannel = kActChannel + kFfnStride / 2;  // [Q][splits][2 + D]: max, sum, result

void say(uint place, uint value, uint epoch) {
    atomicStore(ChannelRef(p.channels + place * 8).v, uint64_t(value) | (uint64_t(epoch) << 32), gl_ScopeDevice, gl_StorageSemanticsNone,
                gl_SemanticsRelaxed);
}

uint64_t look_from(uint64_t word) { return atomicLoad(ChannelRef(word).v, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed); }
uint64_t look(uint place) { return look_from(p.channels + place * 8); }

// The word, which was looked at before, once it is of this epoch.
uint hear(uint64_t word, uint place, uint epoch) {
    uint polls = 0;
    while (uint(word >> 32) != epoch) {
        word = look(place);
        if (++polls > p.max_polls || given_up != 0) {
            given_up = 1;
            break;
        }
    }
    return uint(word);
}

// Each thread hears several words, runs of `per` neighbours that lie kThreads runs apart: thread 3 of 512 with per = 2
// words 6, 7, 1030, 1031, ...
const uint kPairs = (kHiddenStride / 2 + kThreads - 1) / kThreads;  // of the residual stream
const uint kAtOnce = 10;
const uint kHeardMax = kPairs * 2 > kAtOnce ? kPairs * 2 : kAtOnce;

// Word i of the thread whose first run is `run` and first word is at `first`. With `inside` no thread's run lies behind
// the last one, and the address is that of the first word and a constant.
uint64_t look_at(const uint i, const uint per, const bool inside, uint64_t first, uint channel, uint run, uint last_run) {
    if (!inside) return look(channel + min(run + i / per * kThreads, last_run) * per + i % per);
    return look_from(first + (i / per * kThreads * per + i % per) * 8);
}

// This thread's n words, once all are of this epoch. While the first is missing nothing else is asked for, so those who
// still multiply keep the memory for themselves; then all that is missing at once, as one trip for each word in turn
// takes longer than what is waited for.
// No thread's first run is beyond most_run.
void hear_all(out uint64_t words[kHeardMax], const uint n, const uint per, uint channel, uint run, const uint most_run, const uint last_run, uint epoch) {
    const uint64_t first = p.channels + (channel + run * per) * 8;
    [[unroll]] for (uint i = 0; i < n; i++) words[i] = look_at(i, per, most_run + i / per * kThreads <= last_run, first, channel, run, last_run);
    uint polls = 0;
    for (;;) {
        bool all_there = uint(words[0] >> 32) == epoch;
        if (all_there) {
            [[unroll]] for (uint i = 1; i < n; i++) {
                if (uint(words[i] >> 32) == epoch) continue;
                words[i] = look_at(i, per, most_run + i / per * kThreads <= last_run, first, channel, run, last_run);
                all_there = false;
            }
        } else {
            words[0] = look_at(0, per, most_run <= last_run, first, channel, run, last_run);
        }
        if (all_there) break;
        if (++polls > p.max_polls || given_up != 0) {
            given_up = 1;
            break;
        }
    }
}

const uint kPlacesMax = 16;

// The words of n places, once all are of this epoch; all that is missing is asked for at once, as one behind the other
// takes a trip each. Of few threads: what is not there yet is asked for again and again.
void hear_places(out uint64_t words[kPlacesMax], uint places[kPlacesMax], const uint n, uint epoch) {
    [[unroll]] for (uint i = 0; i < n; i++) words[i] = look(places[i]);
    for (uint polls = 0;;) {
        bool all_there = true;
        [[unroll]] for (uint i = 0; i < n; i++) {
            if (uint(words[i] >> 32) == epoch) continue;
            words[i] = look(places[i]);
            all_there = false;
        }
        if (all_there) break;
        if (++polls > p.max_polls || given_up != 0) {
            given_up = 1;
            break;
        }
    }
}

// Who has given up goes on, with what happens to be there: leaving in the midst of it all would cost everybody, every
// time.
void leave(uint epochs) {
    if (gl_LocalInvocationIndex != 0) return;
    SyncRef sync = SyncRef(p.sync);
    if (given_up != 0) {
        UintRef(p.given_up).v = 1;
#ifdef BEHIND_ATTENTION
        sync.v.given_up = 1;
#endif
    }
    if (atomicAdd(sync.v.left, 1u) != kWorkgroups - 1) return;
    sync.v.epoch += epochs;
    sync.v.left = 0;
}
