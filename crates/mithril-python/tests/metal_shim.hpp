// What a kernel of Metal's language needs to run on a host: a SIMD group of 32 lanes that take turns.
//
// Every lane is a context of its own. A function of the SIMD group leaves its lane's value, lets the other lanes come to
// the same call, and then reads theirs: so all lanes must make the same calls, as on a device.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

using uint = uint32_t;
using std::min;

namespace simd {
constexpr uint LANES = 32;
ucontext_t host, contexts[LANES];
std::vector<char> stacks[LANES];
uint current;
bool is_done[LANES];
int64_t values[2][LANES];
uint calls[LANES];

// Leaves a value, and goes on when all lanes have left theirs. Two rows: a lane may be one call ahead.
const int64_t* exchange(int64_t value) {
    const uint lane = current;
    const uint call = calls[lane]++;
    values[call % 2][lane] = value;
    swapcontext(&contexts[lane], &host);
    for (uint other = 0; other < LANES; ++other) {
        if (calls[other] < call + 1) {
            std::fprintf(stderr, "lane %u is not at call %u\n", other, call);
            std::exit(3);
        }
    }
    return values[call % 2];
}
}  // namespace simd

template <typename T> T simd_sum(T value) {
    const int64_t* values = simd::exchange(static_cast<int64_t>(value));
    int64_t sum = 0;
    for (uint lane = 0; lane < simd::LANES; ++lane) sum += values[lane];
    return static_cast<T>(sum);
}

template <typename T> T simd_prefix_exclusive_sum(T value) {
    const uint own = simd::current;
    const int64_t* values = simd::exchange(static_cast<int64_t>(value));
    int64_t sum = 0;
    for (uint lane = 0; lane < own; ++lane) sum += values[lane];
    return static_cast<T>(sum);
}

struct Position {
    uint x, y, z;
};

template <typename Kernel> void run_group(Kernel kernel) {
    static Kernel* now;
    now = &kernel;
    for (uint lane = 0; lane < simd::LANES; ++lane) {
        simd::stacks[lane].resize(1 << 16);
        simd::is_done[lane] = false;
        simd::calls[lane] = 0;
        getcontext(&simd::contexts[lane]);
        simd::contexts[lane].uc_stack.ss_sp = simd::stacks[lane].data();
        simd::contexts[lane].uc_stack.ss_size = simd::stacks[lane].size();
        simd::contexts[lane].uc_link = &simd::host;
        makecontext(&simd::contexts[lane], +[] {
            (*now)(simd::current);
            simd::is_done[simd::current] = true;
        }, 0);
    }
    for (bool is_left = true; is_left;) {
        is_left = false;
        for (uint lane = 0; lane < simd::LANES; ++lane) {
            if (!simd::is_done[lane]) {
                simd::current = lane;
                swapcontext(&simd::host, &simd::contexts[lane]);
                is_left = true;
            }
        }
    }
    now = nullptr;
}

template <typename T> std::vector<T> read_array(const char* path) {
    std::FILE* file = std::fopen(path, "rb");
    if (file == nullptr) std::exit(2);
    std::fseek(file, 0, SEEK_END);
    std::vector<T> array(static_cast<size_t>(std::ftell(file)) / sizeof(T));
    std::rewind(file);
    if (std::fread(array.data(), sizeof(T), array.size(), file) != array.size()) std::exit(2);
    std::fclose(file);
    return array;
}

template <typename T> void write_array(const char* path, const std::vector<T>& array) {
    std::FILE* file = std::fopen(path, "wb");
    if (file == nullptr || std::fwrite(array.data(), sizeof(T), array.size(), file) != array.size()) std::exit(2);
    std::fclose(file);
}
