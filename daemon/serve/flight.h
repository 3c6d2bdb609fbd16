/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flights: batches between plan and ring. The moving half of a feed; feed.c is the standing half.
 * Everything here runs under the feed's lock, on whichever thread has it.
 */
#ifndef STKD_FLIGHT_H
#define STKD_FLIGHT_H

#include "daemon/serve/feed.h"

/* Room for flights and their recipes. */
int stkd_flights_new(struct stkd_feed *feed);
void stkd_flights_free(struct stkd_feed *feed);

/*
 * On a worker: plans into every free slot and submits; says "dry" when there is none. Gives the lock
 * up while it plans a step.
 */
void stkd_feed_advance(struct stkd_feed *feed);
/* On the loop: a worker shall advance, if there is a free slot. */
void stkd_feed_go_on(struct stkd_feed *feed);
/* Drops what is planned but not published. */
void stkd_flights_forget(struct stkd_feed *feed);
/* The one that tells was asked in vain: from now on it is the seat that holds the most. */
void stkd_feed_change_teller(struct stkd_feed *feed);
/* Looks at the release rings. Returns how many slots became free. */
unsigned stkd_feed_drain(struct stkd_feed *feed);

void stkd_feed_publish_entry(struct stkd_feed *feed, const struct stk_shm_entry *entry);
/* Publishes ERROR with this negative errno and text; the feed has FAILED. */
void stkd_feed_publish_error(struct stkd_feed *feed, int code, const char *text);
/* Publishes STREAM_END; the feed has ENDED. */
void stkd_feed_publish_end(struct stkd_feed *feed);

#endif
