package engine

import (
	"container/list"
	"sync"

	"trill/engine/session"
)

// cacheBytes bounds the transcripts that are kept after a run.
const cacheBytes = 8 << 20

// cache keeps the transcripts of the sessions that ran last, so that a session's
// next run reads only what is new. An entry is taken out while its session runs.
type cache struct {
	mu    sync.Mutex // guards what follows
	limit int
	bytes int
	order *list.List // of *cached, the newest first
	byID  map[session.ID]*list.Element
}

type cached struct {
	id session.ID
	t  *transcript
}

func newCache(limit int) *cache {
	return &cache{limit: limit, order: list.New(), byID: map[session.ID]*list.Element{}}
}

// take returns the transcript of a session, which is the caller's from then on,
// or nil.
func (c *cache) take(id session.ID) *transcript {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.byID[id]
	if el == nil {
		return nil
	}
	return c.remove(el).t
}

// put gives a transcript back.
func (c *cache) put(id session.ID, t *transcript) {
	if t.bytes > c.limit/4 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if el := c.byID[id]; el != nil {
		c.remove(el)
	}
	c.byID[id] = c.order.PushFront(&cached{id, t})
	c.bytes += t.bytes
	for c.bytes > c.limit {
		c.remove(c.order.Back())
	}
}

func (c *cache) remove(el *list.Element) *cached {
	e := c.order.Remove(el).(*cached)
	delete(c.byID, e.id)
	c.bytes -= e.t.bytes
	return e
}
