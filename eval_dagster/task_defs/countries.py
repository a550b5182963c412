"""Member states of the United Nations, with the city that is the capital of each; continents as the UN's geoscheme (M49) has them.

Left out are states whose capital is disputed, moving, shared by several cities or not laid down by law: Benin, Bolivia, Burundi,
Côte d'Ivoire, Equatorial Guinea, Eswatini, Indonesia, Israel, Kiribati, Nauru, South Africa, Sri Lanka and Yemen.
"""

from typing import NamedTuple


class Country(NamedTuple):
    """A state as a sentence names it: `the capital of <name>`."""

    continent: str
    name: str
    capital: str


_TABLE = {
    "africa": """
        Algeria: Algiers | Angola: Luanda | Botswana: Gaborone | Burkina Faso: Ouagadougou | Cabo Verde: Praia | Cameroon: Yaoundé
        the Central African Republic: Bangui | Chad: N'Djamena | the Comoros: Moroni | the Republic of the Congo: Brazzaville
        the Democratic Republic of the Congo: Kinshasa | Djibouti: Djibouti | Egypt: Cairo | Eritrea: Asmara | Ethiopia: Addis Ababa
        Gabon: Libreville | the Gambia: Banjul | Ghana: Accra | Guinea: Conakry | Guinea-Bissau: Bissau | Kenya: Nairobi
        Lesotho: Maseru | Liberia: Monrovia | Libya: Tripoli | Madagascar: Antananarivo | Malawi: Lilongwe | Mali: Bamako
        Mauritania: Nouakchott | Mauritius: Port Louis | Morocco: Rabat | Mozambique: Maputo | Namibia: Windhoek | Niger: Niamey
        Nigeria: Abuja | Rwanda: Kigali | São Tomé and Príncipe: São Tomé | Senegal: Dakar | Seychelles: Victoria
        Sierra Leone: Freetown | Somalia: Mogadishu | South Sudan: Juba | Sudan: Khartoum | Tanzania: Dodoma | Togo: Lomé
        Tunisia: Tunis | Uganda: Kampala | Zambia: Lusaka | Zimbabwe: Harare
    """,
    "asia": """
        Afghanistan: Kabul | Armenia: Yerevan | Azerbaijan: Baku | Bahrain: Manama | Bangladesh: Dhaka | Bhutan: Thimphu
        Brunei: Bandar Seri Begawan | Cambodia: Phnom Penh | China: Beijing | Cyprus: Nicosia | Georgia: Tbilisi | India: New Delhi
        Iran: Tehran | Iraq: Baghdad | Japan: Tokyo | Jordan: Amman | Kazakhstan: Astana | Kuwait: Kuwait City | Kyrgyzstan: Bishkek
        Laos: Vientiane | Lebanon: Beirut | Malaysia: Kuala Lumpur | Maldives: Malé | Mongolia: Ulaanbaatar | Myanmar: Naypyidaw
        Nepal: Kathmandu | North Korea: Pyongyang | Oman: Muscat | Pakistan: Islamabad | the Philippines: Manila | Qatar: Doha
        Saudi Arabia: Riyadh | Singapore: Singapore | South Korea: Seoul | Syria: Damascus | Tajikistan: Dushanbe | Thailand: Bangkok
        Timor-Leste: Dili | Turkey: Ankara | Turkmenistan: Ashgabat | the United Arab Emirates: Abu Dhabi | Uzbekistan: Tashkent
        Vietnam: Hanoi
    """,
    "europe": """
        Albania: Tirana | Andorra: Andorra la Vella | Austria: Vienna | Belarus: Minsk | Belgium: Brussels
        Bosnia and Herzegovina: Sarajevo | Bulgaria: Sofia | Croatia: Zagreb | the Czech Republic: Prague | Denmark: Copenhagen
        Estonia: Tallinn | Finland: Helsinki | France: Paris | Germany: Berlin | Greece: Athens | Hungary: Budapest
        Iceland: Reykjavík | Ireland: Dublin | Italy: Rome | Latvia: Riga | Liechtenstein: Vaduz | Lithuania: Vilnius
        Luxembourg: Luxembourg | Malta: Valletta | Moldova: Chișinău | Monaco: Monaco | Montenegro: Podgorica
        the Netherlands: Amsterdam | North Macedonia: Skopje | Norway: Oslo | Poland: Warsaw | Portugal: Lisbon | Romania: Bucharest
        Russia: Moscow | San Marino: San Marino | Serbia: Belgrade | Slovakia: Bratislava | Slovenia: Ljubljana | Spain: Madrid
        Sweden: Stockholm | Switzerland: Bern | Ukraine: Kyiv | the United Kingdom: London
    """,
    "north_america": """
        Antigua and Barbuda: Saint John's | the Bahamas: Nassau | Barbados: Bridgetown | Belize: Belmopan | Canada: Ottawa
        Costa Rica: San José | Cuba: Havana | Dominica: Roseau | the Dominican Republic: Santo Domingo | El Salvador: San Salvador
        Grenada: Saint George's | Guatemala: Guatemala City | Haiti: Port-au-Prince | Honduras: Tegucigalpa | Jamaica: Kingston
        Mexico: Mexico City | Nicaragua: Managua | Panama: Panama City | Saint Kitts and Nevis: Basseterre | Saint Lucia: Castries
        Saint Vincent and the Grenadines: Kingstown | Trinidad and Tobago: Port of Spain | the United States: Washington, D.C.
    """,
    "oceania": """
        Australia: Canberra | Fiji: Suva | the Marshall Islands: Majuro | Micronesia: Palikir | New Zealand: Wellington
        Palau: Ngerulmud | Papua New Guinea: Port Moresby | Samoa: Apia | the Solomon Islands: Honiara | Tonga: Nukuʻalofa
        Tuvalu: Funafuti | Vanuatu: Port Vila
    """,
    "south_america": """
        Argentina: Buenos Aires | Brazil: Brasília | Chile: Santiago | Colombia: Bogotá | Ecuador: Quito | Guyana: Georgetown
        Paraguay: Asunción | Peru: Lima | Suriname: Paramaribo | Uruguay: Montevideo | Venezuela: Caracas
    """,
}


def _parse(continent: str, block: str) -> list[Country]:
    entries = [entry.split(": ") for line in block.split("\n") for entry in line.split("|") if entry.strip()]
    return [Country(continent, name.strip(), capital.strip()) for name, capital in entries]


COUNTRIES = [country for continent, block in _TABLE.items() for country in _parse(continent, block)]
CONTINENTS = tuple(_TABLE)
