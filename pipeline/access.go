package pipeline

import (
	"fmt"
	"slices"
	"strings"

	"trill/adapters"
)

// Role is the access a person has. Roles are ordered: each may do what the one
// before may.
type Role string

// The roles, from the least to the most.
const (
	RoleNone     Role = "none"     // is not heard
	RoleGuest    Role = "guest"    // may ask; the bot only reads
	RoleMember   Role = "member"   // may ask; changes need an approval
	RoleOperator Role = "operator" // may approve
	RoleAdmin    Role = "admin"    // may change what the bot is allowed
)

// Roles lists all roles in order.
var roles = []Role{RoleNone, RoleGuest, RoleMember, RoleOperator, RoleAdmin}

// AtLeast reports whether r may do what other may.
func (r Role) AtLeast(other Role) bool {
	return slices.Index(roles, r) >= slices.Index(roles, other)
}

// Validate reports an unknown role.
func (r Role) Validate() error {
	if !slices.Contains(roles, r) {
		return fmt.Errorf("%q is no role; use none, guest, member, operator or admin", r)
	}
	return nil
}

// Grant gives a role to whoever Who matches: "channel:platform-id", where * stands
// for any run of characters.
type Grant struct {
	Who  string
	Role Role
}

// Access decides who may do what. The most specific grant counts: an exact one
// before a pattern, a longer pattern before a shorter; of equals the lesser role.
type Access struct {
	Default Role
	Grants  []Grant
	// SelfApprove lets people approve what they asked for themselves.
	SelfApprove bool
}

// PersonKey names a person across channels: "channel:platform-id".
func PersonKey(ch adapters.Channel, id adapters.PersonID) string {
	return string(ch) + ":" + string(id)
}

// RoleOf returns the access of a person, named as by [PersonKey].
func (a Access) RoleOf(person string) Role {
	best, weight := a.Default, -1
	for _, g := range a.Grants {
		if !matchGlob(g.Who, person) {
			continue
		}
		w := len(strings.ReplaceAll(g.Who, "*", ""))
		if !strings.Contains(g.Who, "*") {
			w = 1 << 20
		}
		if w > weight || w == weight && !g.Role.AtLeast(best) {
			best, weight = g.Role, w
		}
	}
	return best
}

// matchGlob reports whether s matches pattern, in which * stands for any run of
// characters, also none, and everything else for itself.
func matchGlob(pattern, s string) bool {
	prefix, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == s
	}
	if !strings.HasPrefix(s, prefix) {
		return false
	}
	s = s[len(prefix):]
	for {
		part, next, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(s, part)
		}
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s, rest = s[i+len(part):], next
	}
}
