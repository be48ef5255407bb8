package talktest

import (
	"crypto/subtle"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const (
	defaultPage, maxPage = 100, 200 // messages

	// notLoggedIn is what the body of a 401 says before an app is asked.
	notLoggedIn = 997
)

// AddParticipant puts a user into a room, which is made if need be, so that its
// account can read there.
func (s *Server) AddParticipant(token, user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room(token).members[user] = true
}

// RemoveParticipant takes a user out of a room.
func (s *Server) RemoveParticipant(token, user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.room(token).members, user)
}

// login returns who asks: empty is nobody. Credentials that are wrong are not
// the same as none.
func (s *Server) login(r *http.Request) (user string, ok bool) {
	user, password, given := r.BasicAuth()
	if !given {
		return "", true
	}
	want, known := s.conf.Accounts[user]
	return user, known && subtle.ConstantTimeCompare([]byte(want), []byte(password)) == 1
}

// account answers a request that somebody makes who can log in.
func (s *Server) account(w http.ResponseWriter, r *http.Request, work func(user string) (data any, err error)) {
	status, code := http.StatusOK, http.StatusOK
	message := "OK"
	var data any = []any{}
	user, ok := s.login(r)
	switch {
	case r.Method != http.MethodGet:
		status, message = http.StatusMethodNotAllowed, "Method not allowed"
	case r.Header.Get("OCS-APIRequest") != "true":
		status, message = http.StatusPreconditionFailed, "CSRF check failed"
	case !ok:
		status, code, message = http.StatusUnauthorized, notLoggedIn, "Unauthorised"
	default:
		s.mu.Lock()
		found, err := work(user)
		s.mu.Unlock()
		if refused, ok := errors.AsType[refusal](err); ok {
			status, message = refused.status, refused.message
			if status == http.StatusUnauthorized {
				code = notLoggedIn
			}
			break
		}
		data = found
	}
	if code == http.StatusOK {
		code = status
	}
	s.mu.Lock()
	s.calls = append(s.calls, Call{Method: r.Method, Path: r.URL.Path, Status: status})
	s.mu.Unlock()
	if status == http.StatusNotModified {
		w.WriteHeader(status)
		return
	}
	replyWith(w, r, status, code, message, data)
}

// user says who is logged in.
func (s *Server) user(w http.ResponseWriter, r *http.Request) {
	s.account(w, r, func(user string) (any, error) {
		if user == "" {
			return nil, refusal{http.StatusUnauthorized, "Current user is not logged in"}
		}
		return map[string]any{"id": user, "enabled": true, "display-name": user}, nil
	})
}

// history gives what was said in a room, the newest first. Waiting for what will
// be said is not something a bot's account does, so that is refused.
func (s *Server) history(w http.ResponseWriter, r *http.Request) {
	s.account(w, r, func(user string) (any, error) {
		query := r.URL.Query()
		if query.Get("lookIntoFuture") != "0" {
			return nil, refusal{http.StatusBadRequest, "lookIntoFuture"}
		}
		in, ok := s.rooms[r.PathValue("token")]
		if !ok || !in.members[user] {
			return nil, refusal{http.StatusNotFound, ""}
		}
		ids := slices.SortedFunc(maps.Keys(in.messages), func(a, b int64) int { return int(b - a) })
		if last := number(query.Get("lastKnownMessageId"), 0); last > 0 {
			known := query.Get("includeLastKnown") == "1"
			ids = slices.DeleteFunc(ids, func(id int64) bool { return id > last || id == last && !known })
		}
		if limit := min(number(query.Get("limit"), defaultPage), maxPage); int64(len(ids)) > limit {
			ids = ids[:limit]
		}
		if len(ids) == 0 {
			return nil, refusal{http.StatusNotModified, ""}
		}
		page := make([]any, 0, len(ids))
		for _, id := range ids {
			page = append(page, in.messages[id].json(r.PathValue("token"), id))
		}
		w.Header().Set("X-Chat-Last-Given", strconv.FormatInt(ids[len(ids)-1], 10))
		return page, nil
	})
}

func number(s string, otherwise int64) int64 {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 {
		return n
	}
	return otherwise
}

// json is the message as the chat API gives it.
func (n note) json(token string, id int64) map[string]any {
	kind, actor, _ := strings.Cut(n.actor, "/")
	m := map[string]any{
		"id": id, "token": token, "actorType": kind, "actorId": actor, "actorDisplayName": n.name,
		"timestamp": n.at.Unix(), "message": n.text, "messageParameters": []any{}, "systemMessage": n.event,
		"messageType": "comment", "isReplyable": n.event == "", "referenceId": n.reference,
		"reactions": map[string]any{}, "expirationTimestamp": 0, "markdown": n.event == "",
	}
	if n.event != "" {
		m["messageType"] = "system"
	}
	return m
}
