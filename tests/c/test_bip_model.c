/*
 * test_bip_model.c - the model of BIP's pipeline (docs/bip.md, "The pipeline"): that the best packet is the best, that
 * tables survive a file, where the file is.
 */
#include "bip/model.h"
#include "check.h"

/* The model: that the best packet is the best, and that tables survive a file. */
int main(void)
{
    /* start, packet, byte and fill in seconds; `one` has nothing that overlaps, as fill equals byte. */
    bip_model m = {50e-6, 2e-6, 1e-9, 3e-9}, one = {5e-6, 1e-6, 1e-9, 1e-9};
    bip_table t, back;
    char place[64], path[] = "/tmp/test-bip-XXXXXX";
    CHECK_EQ(bip_equal_packets(100, 1000), 100);
    CHECK_EQ(bip_equal_packets(10000, 4096), 3392); /* three, in steps of 64 */
    /* The best is compared with every number of equal packets: none of them is faster. */
    for (uint64_t n = 4096; n <= 64 << 20; n = n * 3 / 2) {
        uint64_t best = bip_model_best(&m, n, 1 << 24);
        double least = bip_model_time(&m, n, best);
        for (uint64_t k = 1; k < 200 && n / k >= BIP_MIN_PACKET; k++) {
            uint64_t p = (n + k - 1) / k;
            if (p <= 1 << 24)
                CHECK(bip_model_time(&m, n, p) >= least * 0.999);
        }
        CHECK_EQ(bip_model_best(&one, n, 1 << 30), n); /* nothing overlaps: one packet */
    }
    bip_table_make(&m, 5000, 1 << 24, &t);
    /* Longer messages deserve longer packets. */
    CHECK(bip_table_packet(&t, 1 << 20) < bip_table_packet(&t, 16 << 20));
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    dprintf(fd, "# a comment\nsmall %llu\n", (unsigned long long)t.small);
    for (uint32_t i = 0; i < t.n; i++)
        dprintf(fd, "row %llu %llu\n", (unsigned long long)t.upto[i], (unsigned long long)t.packet[i]);
    /* Lines that make no sense are passed over, or a newer version's file would be useless. */
    dprintf(fd, "row 5 5\nrow nonsense\nrow 99999999999999999999999999999 7\n");
    close(fd);
    CHECK_EQ(bip_table_read(path, &back), 0);
    CHECK_EQ(memcmp(&t, &back, sizeof t), 0);
    CHECK_EQ(truncate(path, 0), 0);
    /* An empty file is no table; nor is a missing one. */
    CHECK_EQ(bip_table_read(path, &back), -1);
    unlink(path);
    CHECK_EQ(bip_table_read(path, &back), -1);
    setenv("VIAKIT_BIP_TABLE", "/some/where", 1);
    /* Named by the environment, or in the user's cache. A buffer that is too small is reported. */
    CHECK_EQ(bip_table_path("shm", place, sizeof place), 0);
    CHECK_EQ(strcmp(place, "/some/where"), 0);
    CHECK_EQ(bip_table_path("shm", place, 5), -1);
    unsetenv("VIAKIT_BIP_TABLE");
    setenv("XDG_CACHE_HOME", "/cache", 1);
    CHECK_EQ(bip_table_path("shm", place, sizeof place), 0);
    CHECK_EQ(strcmp(place, "/cache/viakit/bip-shm.txt"), 0);
    return 0;
}
