/* An intrusive doubly linked list: the link lives in the thing that is listed, so listing never allocates. */
#ifndef KF_LIST_H
#define KF_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct link { struct link *prev, *next; };

#define OWNER_OF(pointer, type, member) ((type *)(void *)((char *)(pointer) - offsetof(type, member)))

static inline void list_init(struct link *l) { l->prev = l->next = l; }
static inline bool list_empty(const struct link *l) { return l->next == l; }

/* Append `l` at the end of `list`. */
static inline void list_add(struct link *list, struct link *l)
{
    l->prev = list->prev;
    l->next = list;
    list->prev->next = l;
    list->prev = l;
}

/* Take `l` out of whatever list it is in; harmless when it is in none. */
static inline void list_remove(struct link *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    list_init(l);
}

/* Walk a list whose current element may be removed by the body. */
#define LIST_EACH(l, spare, list) \
    for (struct link *l = (list)->next, *spare = l->next; l != (list); l = spare, spare = l->next)

#endif
