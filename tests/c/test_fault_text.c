/*
 * test_fault_text.c - faults as text, their limits, and the decisions themselves: functions of seed, number and kind.
 *
 * docs/faults.md is the promise: words and units, "the same seed gives the same faults", and that a wrong text is
 * refused rather than half understood. No frame is sent here; test_faults.c looks at those.
 */
#include <locale.h>
#include <math.h>

#include "check.h"

static viakit_faults parsed(const char *text)
{
    viakit_faults f = {.size = sizeof(f)};
    if (viakit_parse_faults(text, &f) != VIP_SUCCESS)
        FAIL("'%s' was not understood", text);
    return f;
}

/* Every word once, with every unit and form of number somewhere among them. */
static void every_word(void)
{
    viakit_faults f = parsed("loss=0.05,dup=1%,reorder=.5/8,corrupt=1e-3/2,delay=200us,jitter=50ns,stall=10ms/100ms,"
                             "partition=2s@5s,kinds=send+ACK,drop=accept:0-1,double=12,hold=write,spoil=3-4,seed=7");
    CHECK(f.loss == 0.05 && f.duplicate == 0.01 && f.reorder == 0.5 && f.corrupt == 0.001);
    CHECK_EQ(f.reorder_distance, 8);
    CHECK_EQ(f.corrupt_bits, 2);
    CHECK(f.delay_us == 200 && f.jitter_us == 0.05 && f.stall_us == 10000 && f.stall_every_us == 100000);
    CHECK(f.partition_us == 2e6 && f.partition_after_us == 5e6);
    /* Kinds by their numbers in the frame header: SEND is 1, ACK 3, ACCEPT 11. */
    CHECK_EQ(f.kinds, 1 << 1 | 1 << 3);
    CHECK_EQ(f.n_rules, 4);
    CHECK(f.rules[0].verdict == VIAKIT_DROP && f.rules[0].kind == 11 && f.rules[0].first == 0 && f.rules[0].last == 1);
    CHECK(f.rules[1].verdict == VIAKIT_DUPLICATE && f.rules[1].kind == 0 && f.rules[1].first == 12);
    CHECK_EQ(f.rules[1].last, 12);
    CHECK(f.rules[2].verdict == VIAKIT_HOLD && f.rules[2].kind == 2 && f.rules[2].last == ~0ull);
    CHECK(f.rules[3].verdict == VIAKIT_CORRUPT && f.rules[3].first == 3 && f.rules[3].last == 4);
    CHECK_EQ(f.seed, 7);
    CHECK(parsed("partition=ever").partition_us == VIAKIT_FOR_EVER);
    CHECK_EQ(parsed("partition=100f@1000f").partition_after_frames, 1000);
    f = parsed("partition=3f,drop=1,partition=2s@1s,drop=2"); /* one in frames and one in time */
    CHECK(f.partition_frames == 3 && f.partition_us == 2e6 && f.partition_after_us == 1e6 && f.n_rules == 2);
    CHECK(parsed("").loss == 0);
}

/* A written number reads back as the same, also in a locale with a decimal comma. */
static void there_and_back(void)
{
    static const char *const texts[] = {
        "",
        "loss=0.05",
        "loss=0.123456789012345,dup=1,reorder=1e-07/64,corrupt=0.01/32",
        "delay=1.5us,jitter=2ms,stall=999us/1s,partition=ever@3s",
        ("partition=5f,kinds=send+write+ack,drop=send,drop=send:3,double=0-9,hold=nak:1-2,spoil=7,"
         "seed=18446744073709551615"),
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        viakit_faults f = parsed(texts[i]), g = {.size = sizeof(g)};
        char text[512];
        CHECK_OK(viakit_format_faults(&f, text, sizeof(text)));
        CHECK_OK(viakit_parse_faults(text, &g));
        if (memcmp(&f, &g, sizeof(f)) != 0 || strcmp(text, texts[i]) != 0)
            FAIL("'%s' became '%s'", texts[i], text);
        if (*text)
            CHECK_RET(viakit_format_faults(&f, text, strlen(text)), VIP_ERROR_RESOURCE);
    }
}

/* Words without a value, values out of range, units missing, more rules than there is room for. */
static void refused(void)
{
    static const char *const texts[] = {
        "loss",
        "loss=",
        "loss=2",
        "loss=-0.1",
        "loss=nan",
        "loss=0.1,",
        "los=0.1",
        "loss=0.1 dup=1",
        "loss=101%",
        "loss=0x1p-3",
        "loss=1e",
        "loss=0.1,,dup=1",
        "reorder=1/0",
        "reorder=0.1/65",
        "corrupt=1/33",
        "delay=5",
        "delay=-1s",
        "delay=1e400s",
        "stall=1s",
        "stall=1s/1s",
        "partition=5",
        "partition=2s@10f",
        "kinds=",
        "kinds=sent",
        "drop=",
        "drop=send:",
        "drop=5-3",
        "seed=",
        "seed=99999999999999999999",
        "drop=1,drop=1,drop=1,drop=1,drop=1,drop=1,drop=1,drop=1,drop=1",
        "loss=0.1,loss=0.2", /* which of the two? */
        "reorder=0.1/8,dup=1,reorder=0.1",
        "partition=2s@5s,partition=1s",
        "partition=2f@5f,loss=1,partition=1f",
        "kinds=send,kinds=ack",
        "seed=1,seed=1",
    };
    viakit_faults f = {.size = sizeof(f)};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        if (viakit_parse_faults(texts[i], &f) != VIP_INVALID_PARAMETER)
            FAIL("'%s' was understood", texts[i]);
        CHECK(strncmp(viakit_last_error(), "faults: ", 8) == 0);
    }
    CHECK_RET(viakit_parse_faults(NULL, &f), VIP_INVALID_PARAMETER);
    CHECK_RET(viakit_parse_faults("", NULL), VIP_INVALID_PARAMETER);
}

/* A program that was compiled when the struct ended before n_rules: nothing behind that is touched, and a text that
 * needs it is refused. `size` is how the library knows. */
static void smaller_struct(void)
{
    union {
        viakit_faults f;
        unsigned char bytes[sizeof(viakit_faults)];
    } older;
    const size_t len = offsetof(viakit_faults, n_rules);
    memset(&older, 0xA5, sizeof older);
    older.f.size = len;
    CHECK_OK(viakit_parse_faults("loss=0.25,seed=9", &older.f));
    CHECK_EQ(older.f.size, len);
    CHECK(older.f.loss == 0.25 && older.f.seed == 9 && older.f.partition_after_frames == 0);
    CHECK_RET(viakit_parse_faults("loss=0.5,drop=accept:0", &older.f), VIP_INVALID_PARAMETER);
    CHECK(strstr(viakit_last_error(), "compile") != NULL);
    /* The text was refused as a whole. */
    CHECK(older.f.loss == 0.25);
    for (size_t i = len; i < sizeof older; i++)
        CHECK_EQ(older.bytes[i], 0xA5);
    /* A size that no version ever had; 0 means the present one. */
    older.f.size = 1;
    CHECK_RET(viakit_parse_faults("loss=0.5", &older.f), VIP_INVALID_PARAMETER);
    CHECK(strstr(viakit_last_error(), "VIAKIT_FAULTS_INIT") != NULL);
    older.f.size = 0;
    CHECK_OK(viakit_parse_faults("drop=accept:0", &older.f));
    CHECK_EQ(older.f.size, sizeof older.f);
    CHECK_EQ(older.f.n_rules, 1);
}

/* The same limits for a struct that a program fills in itself. */
static void limits(void)
{
    VIP_NIC_HANDLE nic;
    viakit_faults good = {.size = sizeof(good)}, f = {.size = sizeof(f)};
    int active = -1;
    CHECK_OK(viakit_open_nic("loop:limits", NULL, &nic));
    CHECK_OK(viakit_get_faults(nic, &f, &active));
    CHECK(active == 0 && f.loss == 0);
#define REFUSED(field, value)                                         \
    do {                                                              \
        f = good;                                                     \
        f.field = value;                                              \
        CHECK_RET(viakit_set_faults(nic, &f), VIP_INVALID_PARAMETER); \
    } while (0)
    REFUSED(loss, 1.01);
    REFUSED(duplicate, -0.01);
    REFUSED(reorder, NAN);
    REFUSED(corrupt, INFINITY);
    REFUSED(delay_us, -1);
    REFUSED(jitter_us, NAN);
    /* A stall needs a period. */
    REFUSED(stall_us, 5);
    REFUSED(partition_us, -2);
    REFUSED(reorder_distance, 65);
    REFUSED(corrupt_bits, 33);
    REFUSED(n_rules, VIAKIT_MAX_FAULT_RULES + 1);
    REFUSED(n_rules, 1); /* and the rule says nothing */
#undef REFUSED
    good.loss = 0.25;
    CHECK_OK(viakit_set_faults(nic, &good));
    CHECK_OK(viakit_get_faults(nic, &f, &active));
    CHECK(active == 1 && f.loss == 0.25);
    memset(&f, 0xa5, sizeof(f)); /* the struct of a program that knows fewer fields, and what lies behind it */
    f.size = offsetof(viakit_faults, reorder);
    CHECK_OK(viakit_get_faults(nic, &f, NULL));
    CHECK(f.size == offsetof(viakit_faults, reorder) && f.loss == 0.25 && f.duplicate == 0);
    for (size_t i = f.size; i < sizeof(f); i++)
        CHECK_EQ(((uint8_t *)&f)[i], 0xa5);
    f.size = 0;
    CHECK_OK(viakit_get_faults(nic, &f, NULL));
    CHECK(f.size == sizeof(f) && f.reorder == 0 && f.n_rules == 0);
    f.size = 3;
    CHECK_RET(viakit_get_faults(nic, &f, NULL), VIP_INVALID_PARAMETER);
    f = good;
    /* Bytes behind its size are not read, and may be invalid. */
    good.size = offsetof(viakit_faults, partition_us); /* a program that knows fewer fields */
    good.partition_us = -7;
    CHECK_OK(viakit_set_faults(nic, &good));
    CHECK_OK(viakit_set_faults(nic, NULL));
    CHECK_OK(viakit_set_faults(nic, NULL));
    CHECK_OK(viakit_get_faults(nic, &f, &active));
    CHECK(active == 0 && f.loss == 0);
    CHECK_OK(VipCloseNic(nic));
    CHECK_RET(viakit_set_faults(nic, NULL), VIP_INVALID_PARAMETER);
    CHECK_RET(viakit_get_faults(nic, &f, &active), VIP_INVALID_PARAMETER);
}

/* A program that knows nothing of faults gets them from outside; a text that is wrong is not passed over. */
static void environment(void)
{
    VIP_NIC_HANDLE nic;
    viakit_faults f = {.size = sizeof(f)};
    int active;
    setenv("VIAKIT_FAULT", "loss=0.5,seed=3", 1);
    CHECK_OK(VipOpenNic("loop:environment", &nic));
    CHECK_OK(viakit_get_faults(nic, &f, &active));
    CHECK(active == 1 && f.loss == 0.5 && f.seed == 3);
    CHECK_OK(VipCloseNic(nic));
    setenv("VIAKIT_FAULT", "loss=50", 1);
    CHECK_RET(VipOpenNic("loop:environment", &nic), VIP_INVALID_PARAMETER);
    CHECK(strstr(viakit_last_error(), "'loss=50'") != NULL);
    unsetenv("VIAKIT_FAULT");
    CHECK_NOTHING_LEFT();
}

/* Every kind of fault occurs as often as configured, and a higher chance hits all frames that a lower one hits, and
 * more. 200000 draws, so that the least likely fault (1 %) comes some 2000 times. */
static void decisions(void)
{
    enum { N = 200000 };
    viakit_faults f = parsed("loss=0.05,dup=0.02,reorder=0.03,corrupt=0.01,seed=11"), more = f, other = f;
    int n[5] = {0}, differ = 0, of_another_kind = 0;
    more.loss = 0.06;
    other.seed = 12;
    for (int i = 0; i < N; i++) {
        /* Arguments: the faults, the frame's number among all, its kind, its number among its kind. */
        unsigned what = viakit_fault_of(&f, (VIP_UINT64)i, 1, (VIP_UINT64)i);
        CHECK_EQ(what, viakit_fault_of(&f, (VIP_UINT64)i + 1000, 1, (VIP_UINT64)i)); /* whatever others came between */
        of_another_kind += what != viakit_fault_of(&f, (VIP_UINT64)i, 2, (VIP_UINT64)i);
        for (int k = 1; k < 5; k++)
            n[k] += what >> k & 1;
        if (what & 1u << VIAKIT_DROP) {
            CHECK_EQ(what, 1u << VIAKIT_DROP); /* of what is lost there is nothing to spoil */
            CHECK(viakit_fault_of(&more, (VIP_UINT64)i, 1, (VIP_UINT64)i) & 1u << VIAKIT_DROP);
        }
        differ += what != viakit_fault_of(&other, (VIP_UINT64)i, 1, (VIP_UINT64)i);
    }
    /* Fixed numbers, because the seed is fixed: within a tenth of the configured chance. */
    CHECK(abs(n[VIAKIT_DROP] - N / 20) < N / 200);
    CHECK(abs(n[VIAKIT_DUPLICATE] - N / 50) < N / 500);
    CHECK(abs(n[VIAKIT_HOLD] - 3 * N / 100) < 3 * N / 1000);
    CHECK(abs(n[VIAKIT_CORRUPT] - N / 100) < N / 1000);
    CHECK(differ > N / 10 && of_another_kind > N / 10);
    /* Chance is for the kinds that are named; rules are for their own. */
    f = parsed("loss=1,kinds=send+nak,drop=accept:2");
    CHECK_EQ(viakit_fault_of(&f, 5, 1, 0), 1u << VIAKIT_DROP);
    CHECK_EQ(viakit_fault_of(&f, 5, 3, 0), 0);
    CHECK_EQ(viakit_fault_of(&f, 5, 4, 0), 1u << VIAKIT_DROP);
    CHECK_EQ(viakit_fault_of(&f, 5, 11, 1), 0);
    CHECK_EQ(viakit_fault_of(&f, 5, 11, 2), 1u << VIAKIT_DROP);
    f = parsed("partition=3f@10f");
    for (unsigned i = 0; i < 20; i++)
        CHECK_EQ(viakit_fault_of(&f, i, 1, 0), i >= 10 && i < 13 ? 1u << VIAKIT_DROP : 0);
    CHECK(strcmp(viakit_frame_kind_name(1), "SEND") == 0);
    CHECK(viakit_frame_kind_name(0) == NULL && viakit_frame_kind_name(99) == NULL &&
          viakit_frame_kind_name(-1) == NULL);
}

int main(void)
{
    /* Where a comma is the decimal sign, a careless strtod reads 0.05 as 0. If the machine has none of these locales,
     * the test runs without. */
    static const char *const comma[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "nl_NL.UTF-8"};
    check_deadline(60);
    unsetenv("VIAKIT_FAULT");
    for (size_t i = 0; i < sizeof(comma) / sizeof(*comma) && setlocale(LC_NUMERIC, comma[i]) == NULL; i++)
        ;
    every_word();
    there_and_back();
    refused();
    smaller_struct();
    limits();
    environment();
    decisions();
    return 0;
}
