package explain

// Headline says the cause in one sentence.
func (x *Explanation) Headline() string { return x.headline() }

// String says the change in plain words.
func (c *Change) String() string { return changeText(c) }

// Details say in plain words what a node lacks, in the order of Lacks.
func (m *Miss) Details() []string {
	out := make([]string, len(m.Lacks))
	for k := range m.Lacks {
		out[k] = lackText(&m.Lacks[k], m.Blockers[k])
	}
	return out
}
