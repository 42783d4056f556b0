/* What an upload is, by its first bytes. */
#ifndef API_BUNDLE_KIND_H
#define API_BUNDLE_KIND_H

#include <stddef.h>
#include <stdint.h>

enum bundle_kind { BUNDLE_OF_FILE, BUNDLE_OF_TAR, BUNDLE_OF_GZIP, BUNDLE_OF_ZIP };

enum bundle_kind bundle_kind_of(const uint8_t *head, size_t len);
/* What a file is packed with that is not read here; NULL: nothing that is known. */
const char *bundle_packed_with(const uint8_t *head, size_t len);

#endif
