/* From errno to the error kinds of FRAMES.md, and to words for a person. */
#ifndef KF_KINDS_H
#define KF_KINDS_H

#include <stdint.h>

uint8_t kf_kind_of(int error);
const char *kf_words_of(uint8_t kind); /* never NULL */

#endif
