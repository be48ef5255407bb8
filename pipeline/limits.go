package pipeline

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits bounds how many requests are worked on, each per hour; 0 is no limit.
// A bucket of that size may be used up at once and fills again evenly.
type Limits struct {
	PersonPerHour int
	RoomPerHour   int
	TotalPerHour  int
}

// limiter counts requests by person, by room and in all. It forgets when the
// process ends, in favour of the people.
type limiter struct {
	conf Limits
	mu   sync.Mutex // guards by
	by   map[string]*bucket
}

type bucket struct {
	*rate.Limiter
	told time.Time // when the person was last told about the limit
}

// maxBuckets bounds the people and rooms that are remembered.
const maxBuckets = 10_000

// tellEvery is how often somebody over the limit is told so.
const tellEvery = 10 * time.Minute

func newLimiter(conf Limits) *limiter {
	return &limiter{conf: conf, by: map[string]*bucket{}}
}

// allow takes one request into account. When it is over a limit, wait is how
// long until the next is not, and tell whether to say so.
func (l *limiter) allow(now time.Time, person, room string) (ok bool, wait time.Duration, tell bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var taken []*rate.Reservation
	for _, b := range []struct {
		key     string
		perHour int
	}{{"person " + person, l.conf.PersonPerHour}, {"room " + room, l.conf.RoomPerHour}, {"total", l.conf.TotalPerHour}} {
		if b.perHour <= 0 {
			continue
		}
		r := l.bucket(b.key, b.perHour, now).ReserveN(now, 1)
		taken = append(taken, r)
		wait = max(wait, r.DelayFrom(now))
	}
	if wait == 0 {
		return true, 0, false
	}
	for _, r := range taken {
		r.CancelAt(now)
	}
	b := l.bucket("told "+person, 1, now)
	if tell = now.Sub(b.told) >= tellEvery; tell {
		b.told = now
	}
	return false, wait, tell
}

func (l *limiter) bucket(key string, perHour int, now time.Time) *bucket {
	b := l.by[key]
	if b == nil {
		if len(l.by) >= maxBuckets {
			l.forget(now)
		}
		b = &bucket{Limiter: rate.NewLimiter(rate.Every(time.Hour/time.Duration(perHour)), perHour)}
		l.by[key] = b
	}
	return b
}

// forget drops the buckets that are full again, and all when that is not enough.
func (l *limiter) forget(now time.Time) {
	for k, b := range l.by {
		if b.TokensAt(now) >= float64(b.Burst()) && now.Sub(b.told) > tellEvery {
			delete(l.by, k)
		}
	}
	if len(l.by) >= maxBuckets {
		clear(l.by)
	}
}
