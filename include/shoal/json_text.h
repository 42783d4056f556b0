/* Text as JSON has it. The writer of the API (api/http/json_writer.c) makes it; whoever else says something in JSON asks
 * for it here, so that there is one escaper. */
#ifndef SHOAL_JSON_TEXT_H
#define SHOAL_JSON_TEXT_H

#include "shoal/buf.h"

/* Appends `text` with its quotes; bytes that are no UTF-8 become U+FFFD. FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_json_quote(struct shoal_view text, struct shoal_buf *out);

#endif
