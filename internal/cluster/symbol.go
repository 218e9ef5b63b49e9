package cluster

// Symbol stands for a string within one State, until State.Renumbered changes. Equal strings have equal symbols. Symbols never
// travel: another replica may number them differently.
type Symbol int32

// NoSymbol is what Lookup returns for a string that the state has not seen.
const NoSymbol Symbol = -1

// Symbols interns strings.
type Symbols struct {
	ids     map[string]Symbol
	strings []string
}

func (s *Symbols) intern(text string) Symbol {
	if id, ok := s.ids[text]; ok {
		return id
	}
	if s.ids == nil {
		s.ids = make(map[string]Symbol)
	}
	id := Symbol(len(s.strings))
	s.strings = append(s.strings, text)
	s.ids[text] = id
	return id
}

// Lookup returns the symbol of text, or NoSymbol.
func (s *Symbols) Lookup(text string) Symbol {
	if id, ok := s.ids[text]; ok {
		return id
	}
	return NoSymbol
}

// Text returns the string of a symbol.
func (s *Symbols) Text(id Symbol) string { return s.strings[id] }

// Len returns the number of symbols: a class compiled when there were fewer may have looked up a string that has a
// symbol now.
func (s *Symbols) Len() int { return len(s.strings) }
