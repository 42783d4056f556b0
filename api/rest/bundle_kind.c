#include "bundle_kind.h"

#include <string.h>

#include "shoal/bundle.h"

#include "shoal/banned.h"

enum bundle_kind bundle_kind_of(const uint8_t *head, size_t len)
{
    if (len >= 2 && head[0] == 0x1f && head[1] == 0x8b)
        return BUNDLE_OF_GZIP;
    if (len >= 4 && (memcmp(head, "PK\3\4", 4) == 0 || memcmp(head, "PK\5\6", 4) == 0))
        return BUNDLE_OF_ZIP;
    if (len >= 262 && memcmp(head + 257, "ustar", 5) == 0)
        return BUNDLE_OF_TAR;
    return BUNDLE_OF_FILE;
}

bool shoal_bundle_is_archive(const uint8_t *head, size_t len) { return bundle_kind_of(head, len) != BUNDLE_OF_FILE; }

const char *bundle_packed_with(const uint8_t *head, size_t len)
{
    static const struct {
        const char *name, *bytes;
        size_t len;
    } rows[] = { { "bzip2", "BZh", 3 },
                 { "xz", "\xfd"
                         "7zXZ",
                   5 },
                 { "zstd", "\x28\xb5\x2f\xfd", 4 },
                 { "7z", "7z\xbc\xaf\x27\x1c", 6 },
                 { "rar", "Rar!\x1a\x07", 6 } };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (len >= rows[i].len && memcmp(head, rows[i].bytes, rows[i].len) == 0)
            return rows[i].name;
    return NULL;
}
