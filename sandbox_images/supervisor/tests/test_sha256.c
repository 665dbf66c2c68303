/* SHA-256 against the published answers, whole and in pieces of every size around a block. */
#include <string.h>

#include "check.h"
#include "sha256.h"

static void hex_of(const char *text, size_t repeat, size_t piece, char hex[65])
{
    struct kf_sha256 s;
    uint8_t hash[KF_HASH];
    size_t length = strlen(text);
    kf_sha256_start(&s);
    for (size_t i = 0; i < repeat; i++)
        for (size_t at = 0; at < length; at += piece)
            kf_sha256_add(&s, text + at, length - at < piece ? length - at : piece);
    kf_sha256_end(&s, hash);
    for (int i = 0; i < KF_HASH; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[i]);
}

int main(void)
{
    static const struct { const char *text; size_t repeat; const char *hex; } known[] = {
        {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    };
    char hex[65], whole[65], text[300];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        hex_of(known[i].text, known[i].repeat, 1000, hex);
        CHECK(strcmp(hex, known[i].hex) == 0);
    }
    memset(text, 'x', sizeof text);
    text[299] = '\0';
    hex_of(text, 1, 1000, whole);
    for (size_t piece = 1; piece < 200; piece++) {
        hex_of(text, 1, piece, hex);
        CHECK(strcmp(hex, whole) == 0);
    }
    DONE();
}
