/* Runs a fuzz target on files instead of under a fuzzer: with any compiler, for any machine. */
#include "script.h"

int main(int count, char **paths) {
    static uint8_t bytes[1 << 16];
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(paths[i], "rb");
        CHECK(file);
        script_left = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        LLVMFuzzerTestOneInput(bytes, script_left);
    }
    printf("%d replayed\n", count - 1);
    return 0;
}
