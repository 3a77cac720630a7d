/*
 * test_blake2s.c - BLAKE2s against known answers: RFC 7693's example and self-test, and digests of Python's hashlib,
 * keyed and not, for lengths around whole blocks. Then the same data in pieces of every length.
 */
#include <stdint.h>

#include "base/blake2s.h"
#include "check.h"

/* The bytes that RFC 7693, appendix E, makes of a seed. */
static void self_test_sequence(uint8_t *out, size_t len, uint32_t seed)
{
    uint32_t a = 0xDEAD4BADu * seed, b = 1;
    for (size_t i = 0; i < len; i++) {
        uint32_t t = a + b;
        a = b;
        b = t;
        out[i] = (uint8_t)(t >> 24);
    }
}

static void check_digest(const uint8_t digest[32], const char *hex)
{
    uint8_t right[32];
    CHECK_EQ(vk_read_hex(hex, right, sizeof(right)), 0);
    CHECK(memcmp(digest, right, 32) == 0);
}

/* RFC 7693, appendix B. */
static void test_example(void)
{
    uint8_t digest[32];
    vk_blake2s(NULL, 0, "abc", 3, digest);
    check_digest(digest, "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
}

/* RFC 7693, appendix E: a digest of digests, plain and keyed, here only those of 32 bytes. The final value is
 * hashlib.blake2s of the same 12 digests, of six lengths without and with a key of 32 bytes. */
static void test_sequence(void)
{
    static const size_t lens[] = {0, 3, 64, 65, 255, 1024};
    uint8_t in[1024], key[32], digest[32];
    struct vk_blake2s all;
    vk_blake2s_begin(&all, NULL, 0);
    for (size_t i = 0; i < sizeof(lens) / sizeof(*lens); i++) {
        self_test_sequence(in, lens[i], (uint32_t)lens[i]);
        vk_blake2s(NULL, 0, in, lens[i], digest);
        vk_blake2s_add(&all, digest, sizeof(digest));
        self_test_sequence(key, sizeof(key), sizeof(key));
        vk_blake2s(key, sizeof(key), in, lens[i], digest);
        vk_blake2s_add(&all, digest, sizeof(digest));
    }
    vk_blake2s_end(&all, digest);
    check_digest(digest, "caf4e0cc2111755c0b9672541eb947406ea171d4b62cb363cf80ab560214d804");
}

/* The reference's known answers have the key 00 01 .. 1f and the message 00 01 .. of n bytes. */
static void test_known_answers(void)
{
    static const struct {
        size_t key_len, len;
        const char *hex;
    } answers[] = {
        {0, 0, "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9"},
        {0, 1, "e34d74dbaf4ff4c6abd871cc220451d2ea2648846c7757fbaac82fe51ad64bea"},
        {0, 55, "f4495470f226c8c214be08fdfad4bc4a2a9dbea9136a210df0d4b64929e6fc14"},
        {0, 63, "e57cb79487dd57902432b250733813bd96a84efce59f650fac26e6696aefafc3"},
        {0, 64, "56f34e8b96557e90c1f24b52d0c89d51086acf1b00f634cf1dde9233b8eaaa3e"},
        {0, 65, "1b53ee94aaf34e4b159d48de352c7f0661d0a40edff95a0b1639b4090e974472"},
        {0, 127, "f18417b39d617ab1c18fdf91ebd0fc6d5516bb34cf39364037bce81fa04cecb1"},
        {0, 128, "1fa877de67259d19863a2a34bcc6962a2b25fcbf5cbecd7ede8f1fa36688a796"},
        {0, 129, "5bd169e67c82c2c2e98ef7008bdf261f2ddf30b1c00f9e7f275bb3e8a28dc9a2"},
        {0, 255, "f03f5789d3336b80d002d59fdf918bdb775b00956ed5528e86aa994acb38fe2d"},
        {16, 0, "fcfc1128807d157b01adec1ebe0a0927e5ac0ea65000fcec0852218dbb147106"},
        {16, 1, "55085f9908bf12258f944533b26cc7171c7b537b05562d87dd6021f597d2692b"},
        {16, 55, "8962399a33e7d00e6d033d480a4e9c15c6319597fc33d6b9a51133c5f46db722"},
        {16, 63, "306025cb3c58ecf6f013cf53bb2f3ee0821d9e4bedbba529484d42cd2e57727b"},
        {16, 64, "02ba5ce93a26f31312dd2226e48e522df956817d30e797fc3dd232f6bfb5d6a2"},
        {16, 65, "663c663b0a34211816968d004d286d543fcb1707bdde93bbd485cb225436aeff"},
        {16, 127, "bfbd7bb02d80e3991957c42a148560163cff2e2d9bc163ca2cb8b3cc1807a0de"},
        {16, 128, "ad40caaba7d52b5e44a472da2ba8b9a727afc4983db5d9989dd93c464c9e384a"},
        {16, 129, "70986d3ec0651fecda68c120dc78d198a6a73d92bcced33d5a83f5122a6a3ba7"},
        {16, 255, "172201ff4b7e240167b03ae037ce150d6fdf5fe4edf9e2f0d3b5df2f08c83081"},
        {32, 0, "48a8997da407876b3d79c0d92325ad3b89cbb754d86ab71aee047ad345fd2c49"},
        {32, 1, "40d15fee7c328830166ac3f918650f807e7e01e177258cdc0a39b11f598066f1"},
        {32, 55, "f16012d93f28851a1eb989f5d0b43f3f39ca73c9a62d5181bff237536bd348c3"},
        {32, 63, "c65382513f07460da39833cb666c5ed82e61b9e998f4b0c4287cee56c3cc9bcd"},
        {32, 64, "8975b0577fd35566d750b362b0897a26c399136df07bababbde6203ff2954ed4"},
        {32, 65, "21fe0ceb0052be7fb0f004187cacd7de67fa6eb0938d927677f2398c132317a8"},
        {32, 127, "ddbfea75cc467882eb3483ce5e2e756a4f4701b76b445519e89f22d60fa86e06"},
        {32, 128, "0c311f38c35a4fb90d651c289d486856cd1413df9b0677f53ece2cd9e477c60a"},
        {32, 129, "46a73a8dd3e70f59d3942c01df599def783c9da82fd83222cd662b53dce7dbdf"},
        {32, 255, "3fb735061abc519dfe979e54c1ee5bfad0a9d858b3315bad34bde999efd724dd"},
    };
    uint8_t key[32], in[256], digest[32];
    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = (uint8_t)i;
    memcpy(key, in, sizeof(key));
    for (size_t i = 0; i < sizeof(answers) / sizeof(*answers); i++) {
        vk_blake2s(key, answers[i].key_len, in, answers[i].len, digest);
        check_digest(digest, answers[i].hex);
    }
}

static void test_pieces(void)
{
    uint8_t in[200], key[32] = {7}, whole[32], digest[32];
    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = (uint8_t)(i * 7);
    vk_blake2s(key, sizeof(key), in, sizeof(in), whole);
    for (size_t piece = 1; piece <= sizeof(in); piece++) {
        struct vk_blake2s s;
        vk_blake2s_begin(&s, key, sizeof(key));
        for (size_t at = 0; at < sizeof(in); at += piece)
            vk_blake2s_add(&s, in + at, piece < sizeof(in) - at ? piece : sizeof(in) - at);
        vk_blake2s_end(&s, digest);
        CHECK(memcmp(digest, whole, 32) == 0);
        for (size_t i = 0; i < sizeof(s); i++)
            CHECK_EQ(((const uint8_t *)&s)[i], 0); /* wiped */
    }
}

static void test_helpers(void)
{
    uint8_t a[32] = {1}, b[32] = {1}, zero[32] = {0};
    for (size_t i = 0; i < 32; i++)
        for (int bit = 0; bit < 8; bit++) {
            CHECK(vk_equal_secret(a, b, 32));
            b[i] ^= (uint8_t)(1 << bit);
            CHECK(!vk_equal_secret(a, b, 32));
            b[i] ^= (uint8_t)(1 << bit);
        }
    CHECK(vk_equal_secret(a, zero, 0));
    CHECK_EQ(vk_read_hex("00ffAb", a, 3), 0);
    CHECK(a[0] == 0 && a[1] == 255 && a[2] == 0xAB);
    CHECK_EQ(vk_read_hex("00ffA", a, 3), -1);
    CHECK_EQ(vk_read_hex("00ffAbc", a, 3), -1);
    CHECK_EQ(vk_read_hex("00ffAg", a, 3), -1);
    CHECK_EQ(vk_read_hex("", a, 0), 0);
    vk_wipe(a, sizeof(a));
    CHECK(vk_equal_secret(a, zero, 32));
    CHECK_EQ(vk_random_bytes(a, sizeof(a)), 0);
    CHECK_EQ(vk_random_bytes(b, sizeof(b)), 0);
    CHECK(!vk_equal_secret(a, b, 32));
}

int main(void)
{
    test_example();
    test_sequence();
    test_known_answers();
    test_pieces();
    test_helpers();
    return 0;
}
